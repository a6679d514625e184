-- Deletes a blob's value or chunk unless it was stored recently: 1 if it was deleted, else 0.
--   most_ttl_s: a longer time to live means that it was stored recently
local blob = unpack(KEYS)
local most_ttl_s = unpack(ARGV)

if redis.call('TTL', blob) > tonumber(most_ttl_s) then return 0 end
return redis.call('UNLINK', blob)
