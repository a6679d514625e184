-- A blob was found missing: what is counted of it goes, and gateways are told, once.
-- KEYS: sizes, held; ARGV: digest, channel, message
local bytes = redis.call('HGET', KEYS[1], ARGV[1])
if not bytes then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HINCRBY', KEYS[2], 'bytes', -tonumber(bytes))
redis.call('PUBLISH', ARGV[2], ARGV[3])
return 1
