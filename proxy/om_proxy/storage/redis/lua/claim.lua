-- The threads that are due and not leased, tenants taking turns; with a holder, leased to it in the same step. Returns their names, packed.
--
-- Of each tenant only as many threads as are wanted are looked at, behind those that are leased or left out.
local now, limit, with_callers, holder, lease_ms = take(), take_number(), take() == '1', take(), take()
local skipped = {}
for _, name in ipairs(take_many(take_number())) do skipped[name] = true end

local PAGE = 50

-- What a list holds from its beginning on, page by page.
local function walk(key)
    local page, place, offset = {}, 0, 0
    return function()
        place = place + 2
        if place > #page then
            page = redis.call('ZRANGEBYSCORE', key, '-inf', now, 'WITHSCORES', 'LIMIT', offset, PAGE)
            offset, place = offset + PAGE, 2
        end
        if page[place] then return {member = page[place - 1], due = tonumber(page[place])} end
    end
end

local function comes_before(one, other)
    if one.due ~= other.due then return one.due < other.due end
    return one.member < other.member
end

-- Both lists of a tenant as one.
local function merge(next_own, next_other)
    local own, other = next_own(), next_other()
    return function()
        local found
        if own and (not other or comes_before(own, other)) then
            found, own = own, next_own()
        else
            found = other
            if other then other = next_other() end
        end
        return found
    end
end

local function nothing() end

local candidates, first_turns = {}, 0
local tenants = redis.call('ZRANGEBYSCORE', DUE_TENANTS, '-inf', now)
for _, tenant in ipairs(tenants) do
    if first_turns >= limit then break end
    local following = merge(
        walk(key_of_tenant('due', tenant)), with_callers and walk(key_of_tenant('due_of_callers', tenant)) or nothing
    )
    local turn, waiting = 0, following()
    while waiting and turn < limit do
        waiting.packed = string.sub(waiting.member, 17)
        waiting.names = unpack_names(waiting.packed, 3)
        local lease = name_key(tenant, waiting.names[2], LEASE, waiting.names[3])
        if not skipped[waiting.packed] and redis.call('EXISTS', lease) == 0 then
            turn = turn + 1
            waiting.turn = turn
            candidates[#candidates + 1] = waiting
        end
        waiting = following()
    end
    if turn > 0 then first_turns = first_turns + 1 end
end

table.sort(candidates, function(one, other)
    if one.turn ~= other.turn then return one.turn < other.turn end
    return comes_before(one, other)
end)

local found = {}
for place = 1, math.min(limit, #candidates) do
    local thread = candidates[place]
    local names = thread.names
    if holder ~= '' then hold_lease(names[1], names[2], names[3], holder, lease_ms) end
    found[place] = thread.packed
end
return found
