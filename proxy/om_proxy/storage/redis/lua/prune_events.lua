-- Remove the events before the first one that is young, some at a time. Returns whether there may be more.
local oldest_at, limit = take_number(), take_number()
local ids = redis.call('ZRANGE', EVENT_LIST, 0, limit - 1)
local last
for place, data in ipairs(read_fields(EVENT_DATA, ids)) do
    if data and tonumber(unpack_names(data, 4)[4]) >= oldest_at then break end
    last = tonumber(ids[place])
end
if not last then return 0 end
drop_events_through(last, limit)
return last == tonumber(ids[#ids]) and #ids == limit and 1 or 0
