-- Frees a blob's key, if it was stored long ago: 1, or 0.
-- KEYS: blob or chunk
-- ARGV: a longer time to live, in s, means that it was stored lately
if redis.call('TTL', KEYS[1]) > tonumber(ARGV[1]) then return 0 end
return redis.call('UNLINK', KEYS[1])
