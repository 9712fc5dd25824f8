-- Let this master key be the newest, with the secret sealed by it. Returns `older` while another one wraps any key, `changed` if the secret
-- is another by now, or `done`.
local master, before, after = take(), take(), take()
local counts = redis.call('HGETALL', KEY_COUNTS)
for place = 1, #counts, 2 do
    if counts[place] ~= master and tonumber(counts[place + 1]) > 0 then return 'older' end
end
if (redis.call('GET', P .. ':secret') or '') ~= before then return 'changed' end
if before ~= '' then redis.call('SET', P .. ':secret', after) end
redis.call('HSET', ENCRYPTION, 'master', master)
ask_for_erasure() -- the log holds the keys as they were wrapped before
return 'done'
