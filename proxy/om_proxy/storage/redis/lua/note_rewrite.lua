-- Note that a rewrite of the log has served the requests up to this number.
local key, asked = P .. ':erasure', take()
-- a full server refuses the first write of a script if it takes memory, and not a later one
redis.call('HDEL', key, '')
if tonumber(redis.call('HGET', key, 'done') or '0') < tonumber(asked) then redis.call('HSET', key, 'done', asked) end
