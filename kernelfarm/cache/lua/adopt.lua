-- Makes a worker the owner of a queued lease. Returns {job, incarnation, epoch}, or nil if the
-- fence is old or another worker owns the lease. The job is empty if it was evicted.
local lease, attempts, job, stats = unpack(KEYS)
local fence, owner, ttl_ms, attempts_ttl_s, counter_prefix = unpack(ARGV)

local held = redis.call('HMGET', lease, 'fence', 'owner', 'state', 'inc', 'epoch')
if held[1] ~= fence or (held[3] == 'running' and held[2] ~= owner) then
  redis.call('HINCRBY', stats, counter_prefix .. 'dropped', 1)
  return false
end
if held[3] == 'queued' then
  redis.call('SADD', attempts, attempt_name(fence, owner))
  redis.call('EXPIRE', attempts, attempts_ttl_s)
end
redis.call('HSET', lease, 'owner', owner, 'state', 'running')
redis.call('PEXPIRE', lease, ttl_ms)
return {redis.call('GET', job) or '', held[4], held[5]}
