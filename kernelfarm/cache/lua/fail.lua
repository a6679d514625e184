-- Records a failure that expires; with a fence only if it still holds, and then gives the lease back.
-- KEYS: failure, lease, attempts, stats
-- ARGV: failure, ttl ms, fence or '', counter prefix, channel, message
if ARGV[3] ~= '' then
  if redis.call('HGET', KEYS[2], 'fence') ~= ARGV[3] then
    redis.call('HINCRBY', KEYS[4], ARGV[4] .. 'fenced', 1)
    return 'FENCED'
  end
  redis.call('DEL', KEYS[2], KEYS[3])
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('HINCRBY', KEYS[4], ARGV[4] .. 'failures', 1)
redis.call('PUBLISH', ARGV[5], ARGV[6])
return 'OK'
