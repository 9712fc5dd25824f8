-- Note that a rewrite of the log has served the requests up to this number.
local key, asked = P .. ':erasure', take()
if tonumber(redis.call('HGET', key, 'done') or '0') < tonumber(asked) then redis.call('HSET', key, 'done', asked) end
