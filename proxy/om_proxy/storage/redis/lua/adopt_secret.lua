-- Take another secret, unless a thread or a shared log is stored. Returns the one that is the store's now.
local key = P .. ':secret'
if redis.call('EXISTS', ROWS) == 0 then redis.call('SET', key, take()) end
return redis.call('GET', key)
