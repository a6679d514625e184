-- Replaces a key's manifest, if the caller's fence still holds and every blob is there.
-- KEYS: manifest, lease, attempts, job, failure, stats
-- ARGV: fence, blob key prefix, manifest ttl s, blob ttl s, counter prefix, channel, message,
--       blob digests, variant payloads...
local fence = ARGV[1]
if redis.call('HGET', KEYS[1], 'fence') == fence then return 'OK' end -- the reply was lost
if redis.call('HGET', KEYS[2], 'fence') ~= fence then
  redis.call('HINCRBY', KEYS[6], ARGV[5] .. 'fenced', 1)
  return 'FENCED'
end
for digest in string.gmatch(ARGV[8], '%x+') do
  if not is_stored(ARGV[2] .. digest) then return 'MISSING_BLOB' end
end
for digest in string.gmatch(ARGV[8], '%x+') do keep(ARGV[2] .. digest, ARGV[4]) end

redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'fence', fence, 'blobs', ARGV[8], 'variants', #ARGV - 8)
for i = 9, #ARGV do redis.call('HSET', KEYS[1], 'v' .. (i - 8), ARGV[i]) end
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
redis.call('HINCRBY', KEYS[6], ARGV[5] .. 'published', 1)
redis.call('PUBLISH', ARGV[6], ARGV[7])
return 'OK'
