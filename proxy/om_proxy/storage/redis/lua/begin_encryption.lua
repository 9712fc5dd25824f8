-- Encrypt the secret, and from now on each memory that begins. Returns 0, and changes nothing, if somebody else has begun, if the secret
-- is not `plain` any more, or, with `needs_empty`, if anything is stored.
local master, key_store, plain, sealed, needs_empty = unpack(take_many(5))
if redis.call('HEXISTS', ENCRYPTION, 'master') == 1 or (redis.call('GET', P .. ':secret') or '') ~= plain then return 0 end
if needs_empty == '1' and redis.call('EXISTS', ROWS) == 1 then return 0 end
redis.call('HSET', ENCRYPTION, 'master', master)
if key_store ~= '' then redis.call('HSET', ENCRYPTION, 'key_store', key_store) end
if plain ~= '' then
    redis.call('SET', P .. ':secret', sealed)
    ask_for_erasure() -- the log holds it as it was
end
return 1
