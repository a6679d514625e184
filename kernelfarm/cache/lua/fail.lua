-- Records a failure that expires; with a fence only if it still holds, and then gives the lease back.
-- A failure that may pass (no memory, say) tells nothing of the attempts before it: they still count.
-- Of one namespace and space so many are kept; beyond, the one goes that would expire first.
-- KEYS: failure, lease, attempts, stats, job, index of failures
-- ARGV: failure, ttl ms, fence or '', owner, counter prefix, channel, message, 1 if it may pass,
--       prefix of failures' keys, this key's slot, most failures
if ARGV[3] ~= '' then
  redis.call('SREM', KEYS[3], attempt(ARGV[3], ARGV[4]))
  if redis.call('HGET', KEYS[2], 'fence') ~= ARGV[3] then
    redis.call('HINCRBY', KEYS[4], ARGV[5] .. 'fenced', 1)
    return 'FENCED'
  end
  redis.call('DEL', KEYS[2], KEYS[5]) -- whoever tries again stores the input anew
  if ARGV[8] ~= '1' then redis.call('DEL', KEYS[3]) end
end
local ttl, now = tonumber(ARGV[2]), now_ms()
redis.call('SET', KEYS[1], ARGV[1], 'PX', ttl)
redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', now)
redis.call('ZADD', KEYS[6], now + ttl, ARGV[10])
for _ = 1, redis.call('ZCARD', KEYS[6]) - tonumber(ARGV[11]) do
  local first = redis.call('ZPOPMIN', KEYS[6])
  redis.call('DEL', ARGV[9] .. first[1])
  redis.call('HINCRBY', KEYS[4], ARGV[5] .. 'failures_dropped', 1)
end
if redis.call('PTTL', KEYS[6]) < ttl then redis.call('PEXPIRE', KEYS[6], ttl) end
redis.call('HINCRBY', KEYS[4], ARGV[5] .. 'failures', 1)
redis.call('PUBLISH', ARGV[6], ARGV[7])
return 'OK'
