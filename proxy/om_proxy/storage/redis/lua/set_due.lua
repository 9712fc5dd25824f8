-- Set when a row is due; empty: not until it is set again. Who changes the resource meanwhile reads it again, and writes no older time.
local tenant, resource, thread = take(), take(), take()
put_due(tenant, resource, thread, take())
if redis.call('EXISTS', name_key(tenant, resource, ROW, thread)) == 1 then
    redis.call('SET', place_of(tenant, resource) .. 'revision', next_version())
end
