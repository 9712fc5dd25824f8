-- Events of a thread that no commit belongs to.
local kept, tenant, resource, thread = take_number(), take(), take(), take()
add_events(tenant, resource, thread, kept, take_many(take_number()))
