-- Set when a row is due; empty: not until it is set again. Who changes the resource meanwhile reads it again, and writes no older time.
-- With a revision of the resource, nothing is set once it has another one. Returns whether it was set.
local tenant, resource, thread, at, expected = take(), take(), take(), take(), take()
local revision = place_of(tenant, resource) .. 'revision'
if expected ~= '' and (redis.call('GET', revision) or '0') ~= expected then return 0 end
put_due(tenant, resource, thread, at)
if redis.call('EXISTS', name_key(tenant, resource, ROW, thread)) == 1 then
    redis.call('SET', revision, next_version())
end
return 1
