-- Gives a lease back without a result; an orderly end is no failed attempt.
-- KEYS: lease, attempts; ARGV: fence, owner, channel, message
local held = redis.call('HMGET', KEYS[1], 'fence', 'owner')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
