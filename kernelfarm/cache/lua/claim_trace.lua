-- Claims the making of a trace, for a claimant that may take `ttl_ms`; 0 ends its claim. Returns the
-- milliseconds that another claimant may still take, or 0. No claim is taken if `most` are held.
-- `claims` has the ends of claims as scores, `claimants` who holds them. Neither has a time to live,
-- because a full server would evict it.
local claims, claimants = unpack(KEYS)
local digest, claimant, ttl_ms, most = unpack(ARGV)

local now = now_ms()
for _, ended in ipairs(redis.call('ZRANGEBYSCORE', claims, '-inf', now)) do
  redis.call('ZREM', claims, ended)
  redis.call('HDEL', claimants, ended)
end
local holder = redis.call('HGET', claimants, digest)
if holder and holder ~= claimant then
  return math.max(1, redis.call('ZSCORE', claims, digest) - now)
end
if tonumber(ttl_ms) == 0 then
  redis.call('ZREM', claims, digest)
  redis.call('HDEL', claimants, digest)
elseif holder or redis.call('ZCARD', claims) < tonumber(most) then
  redis.call('ZADD', claims, now + ttl_ms, digest)
  redis.call('HSET', claimants, digest, claimant)
end
return 0
