-- Some rows of threads along a list: `name`, from one packed name to another; `recent`, the newest first, behind a place; `id`, from an
-- id on. Of each its packed names, what lists show, and the row of the shared log, which is also given by itself in `id`.
local order, tenant, first, last, limit = take(), take(), take(), take(), take_number()

-- The first rank, from the newest on, of what stands behind the place `score`, `id`.
local function find_rank(key, score, id)
    local newer = redis.call('ZCOUNT', key, '(' .. score, '+inf')
    local low, high = newer, newer + redis.call('ZCOUNT', key, score, score)
    while low < high do
        local middle = math.floor((low + high) / 2)
        local member = redis.call('ZREVRANGE', key, middle, middle)[1]
        if string.sub(member, 1, 16) < id then high = middle else low = middle + 1 end
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
else
    packed = redis.call('ZRANGEBYSCORE', ROWS, '(' .. first, '+inf', 'LIMIT', 0, limit)
end

local found = {}
for place, name in ipairs(packed) do
    local names = unpack_names(name, 3)
    local row = redis.call('HMGET', name_key(names[1], names[2], ROW, names[3]), 'id', 'created_at', 'row', 'due')
    local is_shared = redis.call('HGET', place_of(names[1], names[2]) .. 'threads', names[3]) == '1'
    local log = is_shared and redis.call('HGET', name_key(names[1], names[2], ROW, ''), 'row')
    local is_leased = redis.call('EXISTS', name_key(names[1], names[2], LEASE, names[3]))
    found[place] = {name, row[1], row[2], row[3], row[4], log or false, is_leased}
end
return found
