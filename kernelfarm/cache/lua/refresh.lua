-- Replaces a variant's manifest by one that expires later: 1, or 0 if the variant has another
-- manifest than the old one.
local entry = unpack(KEYS)
local variant_id, old_manifest, new_manifest, not_after_s = unpack(ARGV)

if redis.call('HGET', entry, variant_id .. ':m') ~= old_manifest then return 0 end
redis.call('HSET', entry, variant_id .. ':m', new_manifest, variant_id .. ':x', not_after_s)
return 1
