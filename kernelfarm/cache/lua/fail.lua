-- Records a failure that expires. With a fence, it does so only if the lease has that fence, and it
-- ends the lease. Returns 'OK' or 'FENCED'. The index bounds the number of failures of a namespace
-- and key space: beyond `most_failures`, the failure that expires first is deleted.
--   fence, owner: of the lease, or both empty
--   is_transient: 1 if the failure does not depend on the key (no memory, for example). Earlier
--     attempts then still count towards the quarantine.
--   message: what waiters listen for on the channel
--   storage_key: the name of this key's failure in the index
local failure, lease, attempts, stats, job, failure_index = unpack(KEYS)
local facts, ttl_ms, fence, owner, counter_prefix, channel, message, is_transient, failure_prefix,
  storage_key, most_failures = unpack(ARGV)

if fence ~= '' then
  redis.call('SREM', attempts, attempt_name(fence, owner))
  if redis.call('HGET', lease, 'fence') ~= fence then
    redis.call('HINCRBY', stats, counter_prefix .. 'fenced', 1)
    return 'FENCED'
  end
  redis.call('DEL', lease, job) -- the next attempt stores its own job
  if is_transient ~= '1' then redis.call('DEL', attempts) end
end
local ttl, now = tonumber(ttl_ms), now_ms()
redis.call('SET', failure, facts, 'PX', ttl)
redis.call('ZREMRANGEBYSCORE', failure_index, '-inf', now)
redis.call('ZADD', failure_index, now + ttl, storage_key)
for _ = 1, redis.call('ZCARD', failure_index) - tonumber(most_failures) do
  local first = redis.call('ZPOPMIN', failure_index)
  redis.call('DEL', failure_prefix .. first[1])
  redis.call('HINCRBY', stats, counter_prefix .. 'failures_dropped', 1)
end
if redis.call('PTTL', failure_index) < ttl then redis.call('PEXPIRE', failure_index, ttl) end
redis.call('HINCRBY', stats, counter_prefix .. 'failures', 1)
redis.call('PUBLISH', channel, message)
return 'OK'
