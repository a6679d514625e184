-- Removes one variant, if it still has this manifest: 1, or 0 if somebody was faster.
-- KEYS: entry, stats
-- ARGV: variant id, manifest, counter
redis.call('HINCRBY', KEYS[2], ARGV[3], 1)
if redis.call('HGET', KEYS[1], ARGV[1] .. ':m') ~= ARGV[2] then return 0 end
remove(KEYS[1], fields_of(KEYS[1]), {[ARGV[1]] = true})
return 1
