-- A worker takes over a queued lease: {job, incarnation, epoch}, or nil if the fence is old or
-- another worker has it.
-- KEYS: lease, attempts, job, stats
-- ARGV: fence, new owner, ttl ms, attempts ttl s, counter prefix
local held = redis.call('HMGET', KEYS[1], 'fence', 'owner', 'state', 'inc', 'epoch')
if held[1] ~= ARGV[1] or (held[3] == 'running' and held[2] ~= ARGV[2]) then
  redis.call('HINCRBY', KEYS[4], ARGV[5] .. 'dropped', 1)
  return false
end
if held[3] == 'queued' then
  redis.call('SADD', KEYS[2], attempt(ARGV[1], ARGV[2]))
  redis.call('EXPIRE', KEYS[2], ARGV[4])
end
redis.call('HSET', KEYS[1], 'owner', ARGV[2], 'state', 'running')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {redis.call('GET', KEYS[3]) or '', held[4], held[5]}
