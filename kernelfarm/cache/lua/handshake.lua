-- A connection's first words: is this the server process in which the epoch table lives? Another
-- one (restarted from a file, or a replica that took over) may lack the last invalidations, and
-- begins a new life. 1, or 0 if it ought to and the caller may not.
-- KEYS: epochs, announcements; ARGV: fresh incarnation, or ''
if redis.call('HGET', KEYS[1], '@run') == run_id() then return 1 end
if ARGV[1] == '' then return 0 end
begin_incarnation(KEYS[1], KEYS[2], ARGV[1])
return 1
