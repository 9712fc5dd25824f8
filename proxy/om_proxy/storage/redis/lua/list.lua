-- Some rows of threads along a list: `name`, from one packed name to another; `recent`, the newest first, and `idle`, the oldest first, behind a place; `id`, from an
-- id on. Of each its packed names, what lists show, and the row of the shared log, which is also given by itself in `id`.
local order, tenant, first, last, limit = take(), take(), take(), take(), take_number()

-- The first rank, from the newest on, of what stands behind the place `score`, `id`; with `takes_place`, of that place itself.
local function find_rank(key, score, id, takes_place)
    local newer = redis.call('ZCOUNT', key, '(' .. score, '+inf')
    local low, high = newer, newer + redis.call('ZCOUNT', key, score, score)
    while low < high do
        local middle = math.floor((low + high) / 2)
        local member = redis.call('ZREVRANGE', key, middle, middle)[1]
        local found = string.sub(member, 1, 16)
        if found < id or (takes_place and found == id) then high = middle else low = middle + 1 end
    end
    return low
end

local packed = {}
if order == 'name' then
    packed = redis.call('ZRANGEBYLEX', NAMES, first, last, 'LIMIT', 0, limit)
elseif order == 'recent' then
    local key = tenant == '' and RECENT or key_of_tenant('recent', string.sub(tenant, 2))
    local rank = first == '' and 0 or find_rank(key, first, last)
    for place, member in ipairs(redis.call('ZREVRANGE', key, rank, rank + limit - 1)) do packed[place] = string.sub(member, 17) end
elseif order == 'idle' then
    local rank = first == '' and 0 or redis.call('ZCARD', RECENT) - find_rank(RECENT, first, last, true)
    for place, member in ipairs(redis.call('ZRANGE', RECENT, rank, rank + limit - 1)) do packed[place] = string.sub(member, 17) end
else
    packed = redis.call('ZRANGEBYSCORE', ROWS, '(' .. first, '+inf', 'LIMIT', 0, limit)
end

local found = {}
for place, name in ipairs(packed) do
    local names = unpack_names(name, 3)
    local row = redis.call('HMGET', name_key(names[1], names[2], ROW, names[3]), 'id', 'created_at', 'row', 'due', 'version')
    local is_shared = redis.call('HGET', place_of(names[1], names[2]) .. 'threads', names[3]) == '1'
    local log = is_shared and redis.call('HGET', name_key(names[1], names[2], ROW, ''), 'row')
    local is_leased = redis.call('EXISTS', name_key(names[1], names[2], LEASE, names[3]))
    if order == 'idle' and log and is_leased == 0 then is_leased = redis.call('EXISTS', name_key(names[1], names[2], LEASE, '')) end
    found[place] = {name, row[1], row[2], row[3], row[4], log or false, is_leased, row[5]}
end
return found
