-- Take, prolong or give back a lease. Returns 1 if the holder has it, or had it.
local tenant, resource, thread, holder, lease_ms = unpack(take_many(5))
local stored = redis.call('GET', name_key(tenant, resource, LEASE, thread))
if lease_ms == '' then
    if stored == holder then drop_lease(tenant, resource, thread) end
elseif stored and stored ~= holder then
    return 0
else
    hold_lease(tenant, resource, thread, holder, lease_ms)
end
return 1
