-- Records a failure that expires; with a fence only if it still holds, and then gives the lease back.
-- A failure that may pass (no memory, say) tells nothing of the attempts before it: they still count.
-- KEYS: failure, lease, attempts, stats
-- ARGV: failure, ttl ms, fence or '', counter prefix, channel, message, 1 if it may pass
if ARGV[3] ~= '' then
  local held = redis.call('HMGET', KEYS[2], 'fence', 'state')
  if held[1] ~= ARGV[3] then
    redis.call('HINCRBY', KEYS[4], ARGV[4] .. 'fenced', 1)
    return 'FENCED'
  end
  redis.call('DEL', KEYS[2])
  if ARGV[7] ~= '1' then
    redis.call('DEL', KEYS[3])
  elseif held[2] == 'running' then
    uncount(KEYS[3])
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('HINCRBY', KEYS[4], ARGV[4] .. 'failures', 1)
redis.call('PUBLISH', ARGV[5], ARGV[6])
return 'OK'
