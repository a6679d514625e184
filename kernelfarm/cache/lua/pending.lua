-- Returns the milliseconds until a key's lease lapses, or -1 if there is nothing to wait for: the
-- entry has another stamp than the caller saw, a failure is recorded, or the lease is not held.
local entry, failure, lease = unpack(KEYS)
local seen_stamp = unpack(ARGV)

if (redis.call('HGET', entry, 'stamp') or '') ~= seen_stamp then return -1 end
if redis.call('EXISTS', failure) > 0 then return -1 end
local left_ms = redis.call('PTTL', lease)
if left_ms < 0 then return -1 end
return left_ms
