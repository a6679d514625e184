-- Each connection runs this first. It checks that the epoch table began in this server process.
-- Another process (restarted from a file, or a replica that was promoted) may lack the last
-- invalidations, so a new incarnation begins. Returns 1, or 0 if a new incarnation is needed and
-- the caller may not write.
--   new_incarnation: empty if the caller may not write
local epochs, invalidation_log = unpack(KEYS)
local new_incarnation = unpack(ARGV)

if redis.call('HGET', epochs, '@run') == run_id() then return 1 end
if new_incarnation == '' then return 0 end
begin_incarnation(epochs, invalidation_log, new_incarnation)
return 1
