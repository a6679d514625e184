-- Ends a lease without a result: 1, or 0 if the caller does not hold it. This is an orderly end, so
-- its attempt no longer counts; earlier attempts do.
--   message: what waiters listen for on the channel
local lease, attempts = unpack(KEYS)
local fence, owner, channel, message = unpack(ARGV)

redis.call('SREM', attempts, attempt_name(fence, owner)) -- no effect on a queued lease
local held = redis.call('HMGET', lease, 'fence', 'owner')
if held[1] ~= fence or held[2] ~= owner then return 0 end
redis.call('DEL', lease)
redis.call('PUBLISH', channel, message)
return 1
