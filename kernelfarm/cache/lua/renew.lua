-- Prolongs a lease that is still the caller's: 1, or 0 if it lapsed or has another owner.
-- KEYS: lease; ARGV: fence, owner, ttl ms
local held = redis.call('HMGET', KEYS[1], 'fence', 'owner')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
