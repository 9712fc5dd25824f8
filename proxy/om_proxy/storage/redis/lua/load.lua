-- Memories of one resource, all of one moment: those that are not held as they stand. For each a number: 0, nothing is stored; 1, it is
-- held as it stands; or its parts; or, where what is held has only grown, what has come since.
local tenant, resource, max_recent, count = take(), take(), take(), take_number()

local function split(ids)
    local found = {}
    for id in string.gmatch(ids or '', '[^,]+') do found[#found + 1] = id end
    return found
end

local function read_all(key, row)
    local coverage = row[6]
    local recent = redis.call('ZREVRANGEBYSCORE', key('live'), coverage, '-inf', 'LIMIT', 0, max_recent)
    local tail = redis.call('ZRANGEBYSCORE', key('live'), '(' .. coverage, '+inf')
    local log = split(redis.call('HGET', key('generations'), row[7]))
    return {
        'all', row[1], row[2], row[3], row[4], row[5],
        read_fields(key('marks'), recent), read_fields(key('marks'), tail), read_fields(key('texts'), tail),
        read_fields(key('notes'), log), read_fields(key('notes'), redis.call('ZRANGE', key('chunks'), 0, -1)),
    }
end

-- `last_seq`: of the newest live message that is held; `next_id`: the id that the next note was to get.
local function read_since(key, row, last_seq, next_id)
    local added = redis.call('ZRANGEBYSCORE', key('live'), '(' .. last_seq, '+inf')
    local log, chunks = split(redis.call('HGET', key('generations'), row[7])), redis.call('ZRANGE', key('chunks'), 0, -1)
    local notes = {}
    for _, ids in ipairs({log, chunks}) do
        for _, id in ipairs(ids) do
            if tonumber(id) >= next_id then notes[#notes + 1] = id end
        end
    end
    return {
        'since', row[1], row[2], row[3], row[4], row[5],
        read_fields(key('marks'), added), read_fields(key('texts'), added), log, chunks, read_fields(key('notes'), notes),
    }
end

local memories = {}
for place = 1, count do
    local thread, held_id, held_version, last_seq, next_id = take(), take(), take(), take(), take_number()
    local function key(part) return name_key(tenant, resource, part, thread) end
    local row = redis.call('HMGET', key(ROW), 'id', 'version', 'due', 'row', 'reflection', 'coverage', 'generation', 'rewound')
    if not row[1] then
        memories[place] = 0
    elseif row[1] == held_id and row[2] == held_version then
        memories[place] = 1
    elseif row[1] == held_id and row[8] and tonumber(row[8]) <= tonumber(held_version) then
        memories[place] = read_since(key, row, last_seq, next_id)
    else
        memories[place] = read_all(key, row)
    end
end
return memories
