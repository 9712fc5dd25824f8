-- Record the seq of the newest reply that went out, of each of these threads.
for _ = 1, take_number() do
    local row, seq = name_key(take(), take(), ROW, take()), take()
    local found = redis.call('HMGET', row, 'id', 'delivered')
    if found[1] and (not found[2] or tonumber(found[2]) < tonumber(seq)) then redis.call('HSET', row, 'delivered', seq) end
end
