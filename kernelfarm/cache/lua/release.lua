-- Gives a lease back without a result; an orderly end is no failed attempt, but those before it were.
-- KEYS: lease, attempts; ARGV: fence, owner, channel, message
redis.call('SREM', KEYS[2], attempt(ARGV[1], ARGV[2])) -- what is only queued is not in it
local held = redis.call('HMGET', KEYS[1], 'fence', 'owner')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
