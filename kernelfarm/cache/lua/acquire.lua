-- Acquires the lease of a key. Returns {fence, earlier attempts, incarnation, epoch}, or nil if
-- the lease is held, or if the entry has a live variant and another stamp than the caller saw.
--   state: `queued` or `running`
--   first_fence: the first fence if the fence counter was lost; the caller's clock, ms since 1970
--   seen_stamp: the stamp of the entry that the caller saw
--   tags: the caller's own tags, separated by spaces
local lease, entry, attempts, fence_counter, stats, epochs, invalidation_log, toolchains =
  unpack(KEYS)
local owner, ttl_ms, state, first_fence, counter_prefix, attempts_ttl_s, new_incarnation,
  seen_stamp, tags, blob_prefix, toolchain_window_ms = unpack(ARGV)

local held = redis.call('HMGET', lease, 'owner', 'fence', 'inc', 'epoch')
if held[1] == owner then
  -- The request is repeated, because the first reply was lost.
  local own = attempt_name(held[2], owner)
  local earlier = redis.call('SCARD', attempts) - redis.call('SISMEMBER', attempts, own)
  return {held[2], earlier, held[3], held[4]}
end
if held[1] then return false end

local context = with_epoch({
  epochs = epochs, invalidation_log = invalidation_log, toolchains = toolchains,
  blob_prefix = blob_prefix, new_incarnation = new_incarnation,
  window_ms = tonumber(toolchain_window_ms), tags = tags,
})
local fields = facts_of(entry)
if fields['stamp'] and fields['stamp'] ~= seen_stamp then
  for _, id in ipairs(ids_of(fields)) do
    if not unusable_reason(fields, id, context) then return false end
  end
end

local earlier = redis.call('SCARD', attempts)
if earlier > 0 then redis.call('HINCRBY', stats, counter_prefix .. 'takeovers', 1) end
-- Fences grow even if the server lost its memory, because they then continue from the clock.
if redis.call('EXISTS', fence_counter) == 0 then redis.call('SET', fence_counter, first_fence) end
local fence = string.format('%.0f', redis.call('INCR', fence_counter))
redis.call('HSET', lease, 'owner', owner, 'fence', fence, 'state', state,
  'inc', context.incarnation, 'epoch', context.epoch)
redis.call('PEXPIRE', lease, ttl_ms)
if state == 'running' then
  redis.call('SADD', attempts, attempt_name(fence, owner))
  redis.call('EXPIRE', attempts, attempts_ttl_s)
end
return {fence, earlier, context.incarnation, tostring(context.epoch)}
