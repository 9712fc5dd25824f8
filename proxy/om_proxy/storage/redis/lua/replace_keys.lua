-- Replace stored data keys, each if it is still the same, or remove it: its new value is empty then. Returns how many these were.
local count, cleared = 0, 0
for _ = 1, take_number() do
    local id, before, after = take(), take(), take()
    if redis.call('HGET', DATA_KEYS, id) == before then
        if after == '' then
            clear_key(id)
            cleared = cleared + 1
        else
            put_key(id, after)
        end
        count = count + 1
    end
end
if cleared > 0 then ask_for_erasure() end
return count
