-- Returns {incarnation, epoch} of the epoch table. A gateway also acknowledges the epoch up to
-- which it has applied invalidations.
--   gateway: its name, or empty
--   applied: `incarnation:epoch`
local epochs, invalidation_log, gateways = unpack(KEYS)
local new_incarnation, gateway, applied = unpack(ARGV)

local incarnation, epoch = epoch_table(epochs, invalidation_log, new_incarnation)
if gateway ~= '' then redis.call('HSET', gateways, gateway, now_ms() .. ':' .. applied) end
return {incarnation, epoch}
