-- Store the store's secret: with `replaces` unless a thread or a shared log is stored, else unless there is one; and only sealed where the
-- store is encrypted, or as it is where it is not. Returns the id of the master key and the secret that is stored then.
local value, is_sealed, replaces = unpack(take_many(3))
local key = P .. ':secret'
local master = redis.call('HGET', ENCRYPTION, 'master')
local guard = replaces == '1' and ROWS or key
if (master ~= false) == (is_sealed == '1') and redis.call('EXISTS', guard) == 0 then redis.call('SET', key, value) end
return {master, redis.call('GET', key)}
