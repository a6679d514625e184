-- A worker takes over a queued lease: the job, or nil if the fence is old or another worker has it.
-- KEYS: lease, attempts, job
-- ARGV: fence, new owner, ttl ms, attempts ttl s
local held = redis.call('HMGET', KEYS[1], 'fence', 'owner', 'state')
if held[1] ~= ARGV[1] then return false end
if held[3] == 'running' and held[2] ~= ARGV[2] then return false end
if held[3] == 'queued' then
  redis.call('INCR', KEYS[2])
  redis.call('EXPIRE', KEYS[2], ARGV[4])
end
redis.call('HSET', KEYS[1], 'owner', ARGV[2], 'state', 'running')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return redis.call('GET', KEYS[3]) or ''
