-- Add the lines of a batch, once. Those of a resource that has no thread go to its tenant's nameless one.
local writer, number, kept_s = take(), take_number(), take_number()
local writers, times = P .. ':ledger_writers', P .. ':ledger_writer_times'
local stored = redis.call('HGET', writers, writer)
if stored and tonumber(stored) >= number then return end
local now = unix_now()
redis.call('HSET', writers, writer, whole(number))
redis.call('ZADD', times, now, writer)
for _, old in ipairs(redis.call('ZRANGEBYSCORE', times, '-inf', '(' .. (tonumber(now) - kept_s), 'LIMIT', 0, SOME)) do
    redis.call('HDEL', writers, old)
    redis.call('ZREM', times, old)
end
for _ = 1, take_number() do
    local tenant, resource, line, sums = take(), take(), take(), take()
    if redis.call('EXISTS', place_of(tenant, resource) .. 'threads') == 0 then resource = '' end
    add_line(tenant, resource, line, sums)
end
