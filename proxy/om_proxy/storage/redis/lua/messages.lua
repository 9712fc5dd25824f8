-- Messages with `after < seq <= last`, at most `limit`: live ones, or all (`every`). Of each its state, its mark and, if wanted, its text; and the ids
-- of the thread's keys.
local tenant, resource, thread, after, last, limit, every, with_texts = unpack(take_many(8))
local function key(part) return name_key(tenant, resource, part, thread) end
local states = {live = '1', superseded = '0', interrupted = '2'}

local found = {}
local function add(part)
    local seqs = redis.call('ZRANGEBYSCORE', key(part), '(' .. after, last, 'LIMIT', 0, limit)
    for _, seq in ipairs(seqs) do found[#found + 1] = {seq, states[part]} end
end
add('live')
if every == '1' then
    add('superseded')
    add('interrupted')
    table.sort(found, function(one, other) return tonumber(one[1]) < tonumber(other[1]) end)
end

local seqs, page_states = {}, {}
local most = tonumber(limit)
for place, message in ipairs(found) do
    if most >= 0 and place > most then break end
    seqs[place], page_states[place] = message[1], message[2]
end
return {page_states, read_fields(key('marks'), seqs), with_texts == '1' and read_fields(key('texts'), seqs) or {}, key_ids_of(tenant, resource, thread)}
