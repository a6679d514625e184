-- Gives a variant a manifest that is good for longer, if it still has the old one: 1 or 0.
-- KEYS: entry
-- ARGV: variant id, old manifest, new manifest, new not after s
if redis.call('HGET', KEYS[1], ARGV[1] .. ':m') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1] .. ':m', ARGV[3], ARGV[1] .. ':x', ARGV[4])
return 1
