-- Add records: of each its tenant, its time and its data, which begins with the tenant. A count below 0: one, which names itself.
local kind, count = take(), take_number()
for _ = 1, math.abs(count) do
    local tenant, at, data = take(), take(), take()
    local id = count < 0 and take() or whole(redis.call('INCR', P .. ':' .. kind .. '_id'))
    redis.call('HSET', P .. ':' .. kind .. '_data', id, data)
    if kind == 'audit' then
        redis.call('ZADD', P .. ':audit', id, id)
        redis.call('ZADD', key_of_tenant('audit', tenant), id, id)
    else
        redis.call('ZADD', key_of_tenant(kind, tenant), at, id)
    end
    redis.call('ZADD', P .. ':' .. kind .. '_at', at, id)
end
