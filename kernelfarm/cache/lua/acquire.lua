-- Takes the lease of a key that is neither published nor leased: {fence, earlier attempts}, or nil.
-- KEYS: lease, manifest, attempts, fence counter, stats
-- ARGV: owner, ttl ms, state (queued|running), now ms, counter prefix, attempts ttl s
local held = redis.call('HMGET', KEYS[1], 'owner', 'fence')
if held[1] == ARGV[1] then
  -- The reply to the same request was lost.
  local earlier = tonumber(redis.call('GET', KEYS[3]) or '0')
  if ARGV[3] == 'running' then earlier = earlier - 1 end
  return {held[2], earlier}
end
if held[1] or redis.call('EXISTS', KEYS[2]) == 1 then return false end

local attempts = tonumber(redis.call('GET', KEYS[3]) or '0')
if attempts > 0 then redis.call('HINCRBY', KEYS[5], ARGV[5] .. 'takeovers', 1) end
-- Fences only grow, also when the server lost its memory: they start at the clock.
if redis.call('EXISTS', KEYS[4]) == 0 then redis.call('SET', KEYS[4], ARGV[4]) end
local fence = redis.call('INCR', KEYS[4])
local text = string.format('%.0f', fence)
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'fence', text, 'state', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
if ARGV[3] == 'running' then
  redis.call('INCR', KEYS[3])
  redis.call('EXPIRE', KEYS[3], ARGV[6])
end
return {text, attempts}
