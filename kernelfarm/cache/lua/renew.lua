-- Extends a lease: 1, or 0 if the caller does not hold it any more.
local lease = unpack(KEYS)
local fence, owner, ttl_ms = unpack(ARGV)

local held = redis.call('HMGET', lease, 'fence', 'owner')
if held[1] ~= fence or held[2] ~= owner then return 0 end
redis.call('PEXPIRE', lease, ttl_ms)
return 1
