-- A page of events, and the marks around it: the newest id, the newest that was pruned, whether there is a gap, the ids, their data,
-- and the ids of the keys of their threads.
local tenant, after, limit, counted = take(), take(), take_number(), take_number()
local newest = tonumber(redis.call('GET', EVENT) or '0')
local pruned = tonumber(redis.call('GET', PRUNED) or '0')
local is_gap = after ~= '' and (tonumber(after) < pruned or tonumber(after) > newest)
local start = '(' .. whole((after == '' or is_gap) and pruned or tonumber(after))

local ids, seen = {}, {}
local function add(key)
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, start, '+inf', 'LIMIT', 0, limit)) do
        if not seen[id] then ids[#ids + 1] = id end
        seen[id] = true
    end
end
if counted < 0 then
    add(tenant == '' and EVENT_LIST or key_of_tenant('events', string.sub(tenant, 2)))
else
    for _ = 1, counted do add(name_key(take(), take(), EVENTS, take())) end
    table.sort(ids, function(one, other) return tonumber(one) < tonumber(other) end)
end
local page = {}
for place = 1, math.min(limit, #ids) do page[place] = ids[place] end
local stored, key_ids, known = read_fields(EVENT_DATA, page), {}, {}
for place, data in ipairs(stored) do
    local names = unpack_names(data, 3)
    local owner = pack(unpack(names))
    if not known[owner] then known[owner] = key_ids_of(names[1], names[2], names[3]) end
    key_ids[place] = known[owner]
end
return {whole(newest), whole(pruned), is_gap and 1 or 0, page, stored, key_ids}
