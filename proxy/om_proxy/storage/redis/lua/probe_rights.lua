-- Return the commands that the user of this connection may not run on the keys of the store, each name once. What is not refused for
-- that reason is no matter: nothing that is stored is touched, and nothing stays.
local key = P .. ':rights'
local other = key .. ':other'
local commands = {
    {'SADD', key, 'x'}, {'SMEMBERS', key}, {'SREM', key, 'y'}, {'EXISTS', key},
    {'INCR', key}, {'GET', key}, {'SET', key, 'x', 'NX'},
    {'HDEL', key, 'x'}, {'HSCAN', key, '0'}, {'HEXISTS', key, 'x'}, {'HGET', key, 'x'}, {'HGETALL', key}, {'HINCRBY', key, 'x', '1'}, {'HKEYS', key},
    {'HLEN', key}, {'HMGET', key, 'x'}, {'HSET', key, 'x', 'y'}, {'HSETNX', key, 'x', 'y'}, {'HVALS', key},
    {'ZADD', key, '0', 'x'}, {'ZCARD', key}, {'ZCOUNT', key, '0', '0'}, {'ZRANGE', key, '0', '0'}, {'ZRANGEBYLEX', key, '-', '+'},
    {'ZRANGEBYSCORE', key, '0', '0'}, {'ZREM', key, 'x'}, {'ZREMRANGEBYRANK', key, '0', '0'}, {'ZREMRANGEBYSCORE', key, '0', '0'}, {'ZSCORE', key, 'x'}, {'ZREVRANGE', key, '0', '0'},
    {'ZREVRANGEBYSCORE', key, '0', '0'}, {'TIME'}, {'RENAME', other, key}, {'DEL', other}, {'DEL', key},
}

local function is_refused(command)
    local reply = redis.pcall(unpack(command))
    if type(reply) ~= 'table' or not reply.err then return false end
    -- Redis 6.2; 7.0; 7.2 and newer
    for _, words in ipairs({'NOPERM', 'user executing the script', 'ACL failure'}) do
        if string.find(reply.err, words, 1, true) then return true end
    end
    return false
end

-- without DEL the key of this script would stay
if is_refused({'DEL', key}) then return {'DEL'} end
local refused, seen = {}, {}
for _, command in ipairs(commands) do
    if is_refused(command) and not seen[command[1]] then
        seen[command[1]] = true
        refused[#refused + 1] = command[1]
    end
end
return refused
