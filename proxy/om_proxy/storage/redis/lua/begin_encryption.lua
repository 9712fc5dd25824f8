-- Encrypt from now on what the database is given. Returns 0, and changes nothing, if somebody else has begun, or if anything is stored.
local master, key_store = take(), take()
if redis.call('HEXISTS', ENCRYPTION, 'master') == 1 or redis.call('EXISTS', P .. ':secret', ROWS) > 0 then return 0 end
redis.call('HSET', ENCRYPTION, 'master', master)
if key_store ~= '' then redis.call('HSET', ENCRYPTION, 'key_store', key_store) end
return 1
