-- Where everything is kept, and how the rows of threads and events are written. Every script begins with this text.
--
-- ARGV[1] is the prefix of all keys. Names and texts from outside come as arguments and are taken as bytes.
local P = ARGV[1]

-- The next arguments, one after the other.
local cursor = 1
local function take()
    cursor = cursor + 1
    return ARGV[cursor]
end
local function take_number() return tonumber(take()) end
local function take_many(count)
    local taken = {}
    for place = 1, count do taken[place] = take() end
    return taken
end

-- ── names ──

local function quote(text)
    return (string.gsub(text, '[^A-Za-z0-9%-%._~]', function(byte) return string.format('%%%02X', string.byte(byte)) end))
end

-- Names one after the other, in an order of bytes that is the order of the names: no name ends in another's place.
local function pack(...)
    local packed = {}
    for place, name in ipairs({...}) do packed[place] = string.gsub(name, '%z', '\0\255') .. '\0' end
    return table.concat(packed)
end

-- The first `count` names that `pack` has joined. A zero byte within a name is followed by 255.
local function unpack_names(packed, count)
    local names, start = {}, 1
    local plain = string.gsub(packed, '%z\255', '\1\255')
    for stop in string.gmatch(plain, '()%z') do
        names[#names + 1] = string.gsub(string.sub(packed, start, stop - 1), '%z\255', '\0')
        start = stop + 1
        if #names == count then break end
    end
    return names
end

-- All keys of one resource share a slot.
local function place_of(tenant, resource) return P .. ':{' .. quote(tenant) .. '/' .. quote(resource) .. '}:' end

local function name_key(tenant, resource, part, thread)
    return place_of(tenant, resource) .. part .. ':' .. quote(thread)
end

local ROW, LEASE, EVENTS = 'row', 'lease', 'events'
local PARTS = {
    ROW, LEASE, EVENTS, 'marks', 'texts', 'live', 'superseded', 'interrupted', 'notes', 'chunks', 'generations', 'beginnings',
}
local function key_of_tenant(kind, tenant) return P .. ':' .. kind .. ':' .. quote(tenant) end

local VERSION, EVENT, PRUNED, EVENT_LIST, EVENT_DATA =
    P .. ':version', P .. ':event', P .. ':pruned', P .. ':events', P .. ':event_data'
local ROWS, NAMES, RESOURCES, RECENT, DUE_TENANTS = P .. ':rows', P .. ':names', P .. ':resources', P .. ':recent', P .. ':due_tenants'
local LEDGER_RESOURCES = P .. ':ledger_resources'
local FORGOTTEN = P .. ':forgotten' -- digests of names, by time
local ENCRYPTION, DATA_KEYS, KEY_COUNTS, NAMED_KEYS, DOOMED_KEYS =
    P .. ':encryption', P .. ':data_keys', P .. ':key_counts', P .. ':named_keys', P .. ':doomed_keys'

-- Lua would write a large number in its short form.
local function whole(number) return string.format('%.0f', number) end

local function unix_now()
    local time = redis.call('TIME')
    return time[1] .. '.' .. string.format('%06d', tonumber(time[2]))
end

-- A command with many arguments, some at a time.
local SOME = 1000
local function call_in_parts(head, arguments)
    local results = {}
    for first = 1, #arguments, SOME do
        local command = {unpack(head)}
        for place = first, math.min(first + SOME - 1, #arguments) do command[#command + 1] = arguments[place] end
        local result = redis.call(unpack(command))
        if type(result) == 'table' then
            for _, value in ipairs(result) do results[#results + 1] = value end
        end
    end
    return results
end

local function read_fields(key, fields) return call_in_parts({'HMGET', key}, fields) end

local function next_version() return whole(redis.call('INCR', VERSION)) end

-- ── keys of memories ──

local KEY_ID_BYTES = 16

-- The ids of a memory's keys, one after the other: its own, and that of what its prompt tells of others. Empty: it is not encrypted.
local function key_ids_of(tenant, resource, thread) return redis.call('HGET', name_key(tenant, resource, ROW, thread), 'keys') or '' end

local function split_key_ids(joined)
    local ids = {}
    for start = 1, #joined, KEY_ID_BYTES do ids[#ids + 1] = string.sub(joined, start, start + KEY_ID_BYTES - 1) end
    return ids
end

-- A stored key begins with the id of the master key that wraps it. How many each of these wraps is counted.
local function count_key(stored, change) redis.call('HINCRBY', KEY_COUNTS, unpack_names(stored, 1)[1], change) end

local function put_key(id, stored)
    local before = redis.call('HGET', DATA_KEYS, id)
    redis.call('HSET', DATA_KEYS, id, stored)
    if before then count_key(before, -1) end
    count_key(stored, 1)
end

local function clear_key(id)
    local stored = redis.call('HGET', DATA_KEYS, id)
    if not stored then return end
    redis.call('HDEL', DATA_KEYS, id)
    count_key(stored, -1)
end

-- A key goes with what it encrypts, whoever removes that. One in a key store is to be destroyed there.
local function drop_keys(joined)
    for _, id in ipairs(split_key_ids(joined)) do
        clear_key(id)
        redis.call('HDEL', NAMED_KEYS, id)
        if redis.call('HEXISTS', ENCRYPTION, 'key_store') == 1 then redis.call('ZADD', DOOMED_KEYS, 0, id) end
    end
end

-- Name the keys of a row that is written.
local function change_keys(row, before, after)
    if before == after then return end
    local kept = {}
    for _, id in ipairs(split_key_ids(after)) do
        kept[id] = true
        redis.call('HSET', NAMED_KEYS, id, 1)
    end
    for _, id in ipairs(split_key_ids(before)) do
        if not kept[id] then drop_keys(id) end
    end
    if after == '' then redis.call('HDEL', row, 'keys') else redis.call('HSET', row, 'keys', after) end
end

-- Have the log rewritten: it holds what is no longer stored.
local function ask_for_erasure() redis.call('HINCRBY', P .. ':erasure', 'asked', 1) end

-- ── lists and due times ──

-- A row in a list by time: of those of one moment, the older id comes first.
local function member_of(id, tenant, resource, thread) return string.format('%016.0f', tonumber(id)) .. pack(tenant, resource, thread) end

local function refresh_due_tenant(tenant)
    local first
    for _, kind in ipairs({'due', 'due_of_callers'}) do
        local found = redis.call('ZRANGE', key_of_tenant(kind, tenant), 0, 0, 'WITHSCORES')
        if found[2] and (not first or tonumber(found[2]) < tonumber(first)) then first = found[2] end
    end
    if first then redis.call('ZADD', DUE_TENANTS, first, tenant) else redis.call('ZREM', DUE_TENANTS, tenant) end
end

-- `at`: empty, not until it is set again.
local function put_due(tenant, resource, thread, at)
    local row = name_key(tenant, resource, ROW, thread)
    local found = redis.call('HMGET', row, 'id', 'needs_caller')
    if not found[1] then return end
    local member = member_of(found[1], tenant, resource, thread)
    local own, other = 'due', 'due_of_callers'
    if found[2] == '1' then own, other = other, own end
    redis.call('ZREM', key_of_tenant(other, tenant), member)
    if at == '' then
        redis.call('HDEL', row, 'due')
        redis.call('ZREM', key_of_tenant(own, tenant), member)
    else
        redis.call('HSET', row, 'due', at)
        redis.call('ZADD', key_of_tenant(own, tenant), at, member)
    end
    refresh_due_tenant(tenant)
end

local function list_row(tenant, resource, thread, id, active_at)
    local packed = pack(tenant, resource, thread)
    redis.call('ZADD', ROWS, id, packed)
    redis.call('ZADD', RESOURCES, 0, pack(tenant, resource))
    if thread ~= '' then
        local member = member_of(id, tenant, resource, thread)
        redis.call('ZADD', NAMES, 0, packed)
        redis.call('ZADD', RECENT, active_at, member)
        redis.call('ZADD', key_of_tenant('recent', tenant), active_at, member)
    end
end

local function unlist_row(tenant, resource, thread, id)
    local packed, member = pack(tenant, resource, thread), member_of(id, tenant, resource, thread)
    redis.call('ZREM', ROWS, packed)
    redis.call('ZREM', NAMES, packed)
    for _, key in ipairs({
        RECENT, key_of_tenant('recent', tenant), key_of_tenant('due', tenant), key_of_tenant('due_of_callers', tenant),
    }) do
        redis.call('ZREM', key, member)
    end
    refresh_due_tenant(tenant)
    local place = place_of(tenant, resource)
    redis.call('HDEL', place .. 'threads', thread)
    redis.call('HDEL', place .. 'waiting', thread)
    redis.call('SREM', place .. 'told', thread)
    redis.call('SREM', place .. 'quoting', thread)
    if redis.call('EXISTS', place .. 'threads') == 0 then
        redis.call('ZREM', RESOURCES, pack(tenant, resource))
        redis.call('DEL', place .. 'revision')
    else
        redis.call('SET', place .. 'revision', next_version())
    end
end

-- ── leases ──

local function drop_lease(tenant, resource, thread)
    redis.call('DEL', name_key(tenant, resource, LEASE, thread))
    redis.call('ZREM', key_of_tenant('leased', tenant), pack(resource, thread))
end

-- A lease ends by itself. The list by tenant is for those of threads that are not stored, which nothing else names.
local function hold_lease(tenant, resource, thread, holder, lease_ms)
    if lease_ms == '0' then return drop_lease(tenant, resource, thread) end
    local listed, now = key_of_tenant('leased', tenant), tonumber(unix_now())
    redis.call('SET', name_key(tenant, resource, LEASE, thread), holder, 'PX', lease_ms)
    redis.call('ZREMRANGEBYSCORE', listed, '-inf', now)
    redis.call('ZADD', listed, now + tonumber(lease_ms) / 1000, pack(resource, thread))
end

-- ── events ──

local function drop_event(id)
    local data = redis.call('HGET', EVENT_DATA, id)
    redis.call('ZREM', EVENT_LIST, id)
    if not data then return end
    local names = unpack_names(data, 3)
    redis.call('HDEL', EVENT_DATA, id)
    redis.call('ZREM', key_of_tenant('events', names[1]), id)
    redis.call('ZREM', name_key(names[1], names[2], EVENTS, names[3]), id)
end

-- Remove the events up to this id, at most `limit`. Return whether there may be more.
local function drop_events_through(last, limit)
    local ids = redis.call('ZRANGEBYSCORE', EVENT_LIST, '-inf', whole(last), 'LIMIT', 0, limit)
    for _, id in ipairs(ids) do
        drop_event(id)
        redis.call('SET', PRUNED, id)
    end
    return #ids == limit
end

local MAX_EVENTS_BEFORE_COMMIT = 1000

-- Whether a thread of the tenant with one of these labels has been forgotten since. The JSON of such an event stands as it is in its data.
local function was_forgotten_since(tenant, forgotten, since, labels)
    for _, id in ipairs(redis.call('ZREVRANGE', key_of_tenant('events', tenant), 0, MAX_EVENTS_BEFORE_COMMIT - 1)) do
        local data = redis.call('HGET', EVENT_DATA, id) or ''
        if string.find(data, forgotten, 1, true) and tonumber(unpack_names(data, 4)[4]) >= since then
            for _, label in ipairs(labels) do
                if string.find(data, '"' .. label, 1, true) then return true end
            end
        end
    end
    return false
end

local MAX_PRUNED = 1000

-- `kept`: how many events stay at most. Of a thread that is not there, nothing is written. An empty name: of one that is forgotten.
local function add_events(tenant, resource, thread, kept, events)
    local is_named = resource ~= ''
    if #events == 0 or (is_named and redis.call('EXISTS', name_key(tenant, resource, ROW, thread)) == 0) then return end
    local newest
    for _, data in ipairs(events) do
        newest = redis.call('INCR', EVENT)
        local id = whole(newest)
        redis.call('HSET', EVENT_DATA, id, data)
        redis.call('ZADD', EVENT_LIST, id, id)
        redis.call('ZADD', key_of_tenant('events', tenant), id, id)
        if is_named then redis.call('ZADD', name_key(tenant, resource, EVENTS, thread), id, id) end
    end
    if is_named then redis.call('SET', place_of(tenant, resource) .. 'revision', next_version()) end
    drop_events_through(newest - kept, MAX_PRUNED + #events)
end

-- ── ledger ──

-- Add sums to a line: integers with spaces between them. An older program knows fewer of them.
local function add_line(tenant, resource, line, sums)
    local key = name_key(tenant, resource, 'ledger', '')
    local stored = redis.call('HGET', key, line)
    if stored then
        local before, total = string.gmatch(stored, '%S+'), {}
        for sum in string.gmatch(sums, '%S+') do total[#total + 1] = whole(tonumber(before() or 0) + tonumber(sum)) end
        for sum in before do total[#total + 1] = sum end
        sums = table.concat(total, ' ')
    end
    redis.call('HSET', key, line, sums)
    redis.call('ZADD', LEDGER_RESOURCES, 0, pack(tenant, resource))
end

local function move_ledger(tenant, resource, new_tenant, new_resource)
    local key = name_key(tenant, resource, 'ledger', '')
    local lines = redis.call('HGETALL', key)
    for place = 1, #lines, 2 do add_line(new_tenant, new_resource, lines[place], lines[place + 1]) end
    redis.call('DEL', key)
    redis.call('ZREM', LEDGER_RESOURCES, pack(tenant, resource))
end
