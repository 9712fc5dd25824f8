-- Store the store's secret: with `replaces` unless a thread or a shared log is stored, else unless there is one; and only if
-- the master key that the store is encrypted with is one of `masters`, or if it is not encrypted and these are ''.
-- Returns the id of the master key and the secret that is stored then.
local value, masters, replaces = unpack(take_many(3))
local key = P .. ':secret'
local master = redis.call('HGET', ENCRYPTION, 'master')
local guard = replaces == '1' and ROWS or key
local may_store = masters == ''
if master then may_store = string.find(masters, master, 1, true) ~= nil end
if may_store and redis.call('EXISTS', guard) == 0 then redis.call('SET', key, value) end
return {master, redis.call('GET', key)}
