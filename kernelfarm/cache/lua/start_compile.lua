-- Begins or prolongs a compilation of a tenant: 1, or 0 if as many fly as may. Each ends by its own
-- time; the whole does not expire, so that no full server evicts it.
-- KEYS: in flight; ARGV: flight, ttl ms, most
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) and redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then
  return 0
end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
return 1
