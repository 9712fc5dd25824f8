-- Remove the records of a time before this one, some at a time. Returns whether there may be more.
local kind, oldest_at, limit = take(), take(), take_number()
local ids = redis.call('ZRANGEBYSCORE', P .. ':' .. kind .. '_at', '-inf', '(' .. oldest_at, 'LIMIT', 0, limit)
for place, data in ipairs(read_fields(P .. ':' .. kind .. '_data', ids)) do
    local id = ids[place]
    if data then redis.call('ZREM', key_of_tenant(kind, unpack_names(data, 1)[1]), id) end
    redis.call('HDEL', P .. ':' .. kind .. '_data', id)
    redis.call('ZREM', P .. ':' .. kind, id)
    redis.call('ZREM', P .. ':' .. kind .. '_at', id)
end
return #ids == limit and 1 or 0
