-- Reports a missing blob to all gateways, and subtracts its size from the quota: 1, or 0 if it was
-- reported before or was never counted.
--   message: what gateways listen for on the channel
local sizes, quota = unpack(KEYS)
local digest, channel, message = unpack(ARGV)

local bytes = redis.call('HGET', sizes, digest)
if not bytes then return 0 end
redis.call('HDEL', sizes, digest)
redis.call('HINCRBY', quota, 'bytes', -tonumber(bytes))
redis.call('PUBLISH', channel, message)
return 1
