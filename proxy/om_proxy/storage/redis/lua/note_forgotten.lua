-- Note that a name was forgotten at a time, and keep the newest `limit` names.
local digest, at, limit = take(), take(), take_number()
-- first, since a full server refuses the first write of a script if it takes memory, and not a later one
redis.call('ZREMRANGEBYRANK', FORGOTTEN, 0, -limit)
redis.call('ZADD', FORGOTTEN, 'GT', at, digest)
