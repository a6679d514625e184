-- The variants of a manifest, or nil; a manifest with a missing blob is deleted and is a miss.
-- KEYS: manifest, stats
-- ARGV: blob key prefix, manifest ttl s, blob ttl s, counter prefix, 1 to count the look-up
local function count(name)
  if ARGV[5] == '1' then redis.call('HINCRBY', KEYS[2], ARGV[4] .. name, 1) end
end

local flat = redis.call('HGETALL', KEYS[1])
if #flat == 0 then
  count('misses')
  return false
end
local fields = {}
for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end

for digest in string.gmatch(fields['blobs'], '%x+') do
  if not is_stored(ARGV[1] .. digest) then
    redis.call('DEL', KEYS[1])
    redis.call('HINCRBY', KEYS[2], ARGV[4] .. 'holes', 1)
    count('misses')
    return false
  end
end

-- What is used lives on; the blobs always longer than the manifest that names them.
if redis.call('TTL', KEYS[1]) < tonumber(ARGV[2]) / 2 then
  redis.call('EXPIRE', KEYS[1], ARGV[2])
  for digest in string.gmatch(fields['blobs'], '%x+') do keep(ARGV[1] .. digest, ARGV[3]) end
end
count('hits')
local payloads = {}
for i = 1, tonumber(fields['variants']) do payloads[i] = fields['v' .. i] end
return payloads
