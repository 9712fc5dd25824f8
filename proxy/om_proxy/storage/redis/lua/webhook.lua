-- How far a webhook has got. A state below the stored one changes nothing, unless no event has the stored place.
local key, name, place, state = P .. ':webhooks', take(), take_number(), take()
local stored = redis.call('HGET', key, name)
if stored then
    local stored_place = tonumber(string.match(stored, '^%d+'))
    if place < stored_place and stored_place <= tonumber(redis.call('GET', EVENT) or '0') then return end
end
redis.call('HSET', key, name, state)
