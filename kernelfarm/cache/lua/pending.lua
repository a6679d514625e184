-- Milliseconds until a key's lease lapses, or -1 if there is nothing to wait for: an entry other
-- than the one that the caller saw, a failure, or no lease.
-- KEYS: entry, failure, lease
-- ARGV: stamp of the entry that the caller saw
if (redis.call('HGET', KEYS[1], 'stamp') or '') ~= ARGV[1] then return -1 end
if redis.call('EXISTS', KEYS[2]) > 0 then return -1 end
local left = redis.call('PTTL', KEYS[3])
if left < 0 then return -1 end
return left
