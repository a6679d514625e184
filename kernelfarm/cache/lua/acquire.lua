-- Takes the lease of a key: {fence, earlier attempts, incarnation, epoch}, or nil if it is leased,
-- or if a live variant is there that the caller has not seen yet.
-- KEYS: lease, entry, attempts, fence counter, stats, epochs, announcements, toolchains
-- ARGV: owner, ttl ms, state (queued|running), now ms, counter prefix, attempts ttl s,
--       fresh incarnation, stamp of the entry that the caller saw, the caller's tags,
--       blob key prefix, toolchain window ms
local held = redis.call('HMGET', KEYS[1], 'owner', 'fence', 'inc', 'epoch')
if held[1] == ARGV[1] then
  -- The reply to the same request was lost.
  local own = attempt(held[2], ARGV[1])
  return {held[2], redis.call('SCARD', KEYS[3]) - redis.call('SISMEMBER', KEYS[3], own),
    held[3], held[4]}
end
if held[1] then return false end

local inc, epoch, floor = epoch_table(KEYS[6], KEYS[7], ARGV[7])
local fields = facts_of(KEYS[2])
if fields['stamp'] and fields['stamp'] ~= ARGV[8] then
  local context = {
    ep = KEYS[6], tools = KEYS[8], blobs = ARGV[10], inc = inc, epoch = epoch, floor = floor,
    window_ms = tonumber(ARGV[11]), now = now_ms(), tags = ARGV[9],
  }
  for _, id in ipairs(ids_of(fields)) do
    if not unusable_reason(fields, id, context) then return false end
  end
end

local attempts = redis.call('SCARD', KEYS[3])
if attempts > 0 then redis.call('HINCRBY', KEYS[5], ARGV[5] .. 'takeovers', 1) end
-- Fences only grow, also when the server lost its memory: they start at the clock.
if redis.call('EXISTS', KEYS[4]) == 0 then redis.call('SET', KEYS[4], ARGV[4]) end
local text = string.format('%.0f', redis.call('INCR', KEYS[4]))
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'fence', text, 'state', ARGV[3],
  'inc', inc, 'epoch', epoch)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
if ARGV[3] == 'running' then
  redis.call('SADD', KEYS[3], attempt(text, ARGV[1]))
  redis.call('EXPIRE', KEYS[3], ARGV[6])
end
return {text, attempts, inc, tostring(epoch)}
