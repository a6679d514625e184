-- Gives a lease back without a result; an orderly end is no failed attempt, but those before it were.
-- KEYS: lease, attempts; ARGV: fence, owner, channel, message
local held = redis.call('HMGET', KEYS[1], 'fence', 'owner', 'state')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[1])
if held[3] == 'running' then uncount(KEYS[2]) end -- what is only queued was not counted
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
