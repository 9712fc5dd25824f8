-- Take the turn to rewrite the log, for so many milliseconds. Returns whether nobody has it.
local key, holder, turn_ms = P .. ':erasure_turn', take(), take()
if redis.call('EXISTS', key) == 1 then return 0 end
-- a full server refuses the first write of a script if it takes memory, and not a later one
redis.call('DEL', key)
redis.call('SET', key, holder, 'PX', turn_ms)
return 1
