-- Starts or extends a compilation of a tenant: 1, or 0 if `most` compilations are in flight. Each
-- compilation expires by its score. The set itself has no time to live, because a full server would
-- evict it.
local compiles = unpack(KEYS)
local compile_id, ttl_ms, most = unpack(ARGV)

local now = now_ms()
redis.call('ZREMRANGEBYSCORE', compiles, '-inf', now)
local is_new = not redis.call('ZSCORE', compiles, compile_id)
if is_new and redis.call('ZCARD', compiles) >= tonumber(most) then return 0 end
redis.call('ZADD', compiles, now + ttl_ms, compile_id)
return 1
