-- Removes a variant that did not pass verification, and counts it: 1, or 0 if the variant has
-- another manifest by now.
--   counter: the field of `stats` for the fault
local entry, stats = unpack(KEYS)
local variant_id, manifest, counter = unpack(ARGV)

redis.call('HINCRBY', stats, counter, 1)
if redis.call('HGET', entry, variant_id .. ':m') ~= manifest then return 0 end
remove_variants(entry, fields_of(entry), {[variant_id] = true})
return 1
