-- Remove lines of one resource.
local tenant, resource = take(), take()
local key = name_key(tenant, resource, 'ledger', '')
for _, line in ipairs(take_many(take_number())) do redis.call('HDEL', key, line) end
if redis.call('EXISTS', key) == 0 then redis.call('ZREM', LEDGER_RESOURCES, pack(tenant, resource)) end
