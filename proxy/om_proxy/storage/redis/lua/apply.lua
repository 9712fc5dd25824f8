-- Make changes, all or none: first a number of conditions, then steps. Returns `{place}` of the first condition that does not hold,
-- or `{0, id, version, …}` with two values for each row that was written.
--
-- The first step of a commit draws a version: a server that is out of memory refuses that, and nothing is written.
local kept_events = take_number()

local conditions = take_number()
for place = 1, conditions do
    local kind = take()
    local stands
    if kind == 'version' then
        stands = redis.call('HGET', name_key(take(), take(), ROW, take()), 'version') or '0'
    elseif kind == 'key' then
        stands = string.sub(key_ids_of(take(), take(), take()), 1, KEY_ID_BYTES)
    elseif kind == 'unforgotten' then
        stands = was_forgotten_since(take(), take(), take_number(), take_many(take_number())) and '1' or '0'
    elseif kind == 'names' then
        local began_at = take_number()
        stands = 'true' -- no name was forgotten since
        for _, digest in ipairs(take_many(take_number())) do
            local at = redis.call('ZSCORE', FORGOTTEN, digest)
            if at and tonumber(at) > began_at then stands = 'false' end
        end
    else -- revision
        stands = redis.call('GET', place_of(take(), take()) .. 'revision') or '0'
    end
    if stands ~= take() then return {place} end
end

local written = {0}
local steps = {}

function steps.call() redis.call(unpack(take_many(take_number()))) end

-- A data key, before the row that names it.
function steps.key() put_key(take(), take()) end

-- The thread's own row, with its places in all lists.
function steps.row()
    local tenant, resource, thread = take(), take(), take()
    local row, coverage, generation, due, needs_caller, is_shared, active_at, waiting, is_told, is_rewound, key_ids = unpack(take_many(11))
    local version = next_version()
    local key, place = name_key(tenant, resource, ROW, thread), place_of(tenant, resource)
    local found = redis.call('HMGET', key, 'id', 'created_at', 'keys')
    local id, created_at = found[1], found[2]
    if not id or not created_at then
        id, created_at = id or version, created_at or unix_now() -- a thread that is restored may keep its own
        redis.call('HSET', key, 'id', id, 'created_at', created_at)
        is_rewound = '1'
    end
    if is_rewound == '1' then redis.call('HSET', key, 'rewound', version) end
    redis.call('HSET', key, 'version', version, 'row', row, 'coverage', coverage, 'generation', generation, 'needs_caller', needs_caller)
    redis.call('SET', place .. 'revision', version)
    redis.call('HSET', place .. 'threads', thread, is_shared)
    if waiting == '' then redis.call('HDEL', place .. 'waiting', thread) else redis.call('HSET', place .. 'waiting', thread, waiting) end
    if is_told == '1' then redis.call('SADD', place .. 'told', thread) else redis.call('SREM', place .. 'told', thread) end
    list_row(tenant, resource, thread, id, active_at == '' and created_at or active_at)
    change_keys(key, found[3] or '', key_ids)
    put_due(tenant, resource, thread, due)
    written[#written + 1], written[#written + 2] = id, version
end

-- What was read so far of a thread cannot be told as changes.
function steps.rewind()
    local key = name_key(take(), take(), ROW, take())
    if redis.call('EXISTS', key) == 1 then redis.call('HSET', key, 'rewound', redis.call('GET', VERSION)) end
end

-- A new version, read in full.
function steps.raise_version()
    local tenant, resource, thread = take(), take(), take()
    local version, place = next_version(), place_of(tenant, resource)
    redis.call('HSET', name_key(tenant, resource, ROW, thread), 'version', version, 'rewound', version)
    redis.call('SET', place .. 'revision', version)
end

-- Live messages after the coverage that the tail does not hold live no longer.
function steps.supersede()
    local tenant, resource, thread, coverage = take(), take(), take(), take()
    local kept = {}
    for _, seq in ipairs(take_many(take_number())) do kept[seq] = true end
    local live = name_key(tenant, resource, 'live', thread)
    for _, seq in ipairs(redis.call('ZRANGEBYSCORE', live, '(' .. coverage, '+inf')) do
        if not kept[seq] then
            redis.call('ZREM', live, seq)
            redis.call('ZADD', name_key(tenant, resource, 'superseded', thread), seq, seq)
        end
    end
end

function steps.due() put_due(take(), take(), take(), take()) end

-- Only those that are there: in between, somebody else may have removed an event.
function steps.replace()
    local key, field, value = take(), take(), take()
    if redis.call('HEXISTS', key, field) == 1 then redis.call('HSET', key, field, value) end
end

function steps.drop_event() drop_event(take()) end

function steps.events()
    local tenant, resource, thread = take(), take(), take()
    add_events(tenant, resource, thread, kept_events, take_many(take_number()))
end

-- The shared log is due at `now` if its threads hold enough unobserved tokens; if it is due later already, only threads that are not
-- in back-off count.
function steps.wake()
    local tenant, resource, now, tokens = take(), take(), take(), take_number()
    local due = redis.call('HGET', name_key(tenant, resource, ROW, ''), 'due')
    if due and tonumber(due) <= tonumber(now) then return end
    local total = 0
    for _, waiting in ipairs(redis.call('HVALS', place_of(tenant, resource) .. 'waiting')) do
        local fresh, is_parked, retry_at = string.match(waiting, '^(%S+) (%S+) (%S+)$')
        if not due or (is_parked == '0' and tonumber(retry_at) <= tonumber(now)) then total = total + tonumber(fresh) end
    end
    if total >= tokens then put_due(tenant, resource, '', now) end
end

-- Everything of one thread, or of a shared log.
function steps.delete()
    local tenant, resource, thread = take(), take(), take()
    local id = redis.call('HGET', name_key(tenant, resource, ROW, thread), 'id')
    local key_ids = key_ids_of(tenant, resource, thread)
    for _, event in ipairs(redis.call('ZRANGE', name_key(tenant, resource, EVENTS, thread), 0, -1)) do drop_event(event) end
    for _, part in ipairs(PARTS) do redis.call('DEL', name_key(tenant, resource, part, thread)) end
    drop_lease(tenant, resource, thread)
    if id then unlist_row(tenant, resource, thread, id) end
    drop_keys(key_ids)
end

-- The leases of a tenant, or of its resource.
function steps.drop_leases()
    local tenant, resource = take(), take()
    for _, packed in ipairs(redis.call('ZRANGE', key_of_tenant('leased', tenant), 0, -1)) do
        local names = unpack_names(packed, 2)
        if resource == '' or names[1] == resource then drop_lease(tenant, names[1], names[2]) end
    end
end

-- Everything of one thread goes to another tenant, with its id.
function steps.move()
    local tenant, resource, thread, new_tenant = take(), take(), take(), take()
    local found = redis.call('HMGET', name_key(tenant, resource, ROW, thread), 'id', 'created_at')
    unlist_row(tenant, resource, thread, found[1])
    drop_lease(tenant, resource, thread)
    for _, part in ipairs(PARTS) do
        local key = name_key(tenant, resource, part, thread)
        if redis.call('EXISTS', key) == 1 then redis.call('RENAME', key, name_key(new_tenant, resource, part, thread)) end
    end
    for _, event in ipairs(redis.call('ZRANGE', name_key(new_tenant, resource, EVENTS, thread), 0, -1)) do
        redis.call('ZREM', key_of_tenant('events', tenant), event)
        redis.call('ZADD', key_of_tenant('events', new_tenant), event, event)
    end
end

-- The lines of a forgotten resource go to those without a name.
function steps.fold()
    local tenant, resource = take(), take()
    if redis.call('EXISTS', place_of(tenant, resource) .. 'threads') == 0 then move_ledger(tenant, resource, tenant, '') end
end

function steps.move_ledger() move_ledger(take(), take(), take(), take()) end

while cursor < #ARGV do steps[take()]() end
return written
