-- Events of a thread that no commit belongs to. Returns 0, and writes nothing, if the thread has another key than this one by now.
local kept, tenant, resource, thread, key_id = take_number(), take(), take(), take(), take()
local is_stored = redis.call('EXISTS', name_key(tenant, resource, ROW, thread)) == 1
if is_stored and string.sub(key_ids_of(tenant, resource, thread), 1, KEY_ID_BYTES) ~= key_id then return 0 end
add_events(tenant, resource, thread, kept, take_many(take_number()))
return 1
