-- Memories of one resource, all of one moment: those that are not held as they stand. For each a number: 0, nothing is stored; 1, it is
-- held as it stands; or its parts.
local tenant, resource, max_recent, count = take(), take(), take(), take_number()

local function split(ids)
    local found = {}
    for id in string.gmatch(ids or '', '[^,]+') do found[#found + 1] = id end
    return found
end

local memories = {}
for place = 1, count do
    local thread, held_id, held_version = take(), take(), take()
    local function key(part) return name_key(tenant, resource, part, thread) end
    local row = redis.call('HMGET', key(ROW), 'id', 'version', 'due', 'row', 'reflection', 'coverage', 'generation')
    if not row[1] then
        memories[place] = 0
    elseif row[1] == held_id and row[2] == held_version then
        memories[place] = 1
    else
        local coverage = row[6]
        local recent = redis.call('ZREVRANGEBYSCORE', key('live'), coverage, '-inf', 'LIMIT', 0, max_recent)
        local tail = redis.call('ZRANGEBYSCORE', key('live'), '(' .. coverage, '+inf')
        local log = split(redis.call('HGET', key('generations'), row[7]))
        memories[place] = {
            row[1], row[2], row[3], row[4], row[5],
            read_fields(key('marks'), recent), read_fields(key('marks'), tail), read_fields(key('texts'), tail),
            read_fields(key('notes'), log), read_fields(key('notes'), redis.call('ZRANGE', key('chunks'), 0, -1)),
        }
    end
end
return memories
