-- Stores a trace that a client signed. Returns 'OK', 'PRESENT' if a live trace is stored,
-- 'STALE_EPOCH' if a dependency was invalidated since the trace was made, or 'STALE_INC' if the
-- epoch table was lost since then.
--   tags: separated by spaces
local entry, stats, epochs, invalidation_log, toolchains, quota = unpack(KEYS)
local entry_ttl_s, counter_prefix, new_incarnation, toolchain_window_ms, variant_id, incarnation,
  epoch, not_after_s, tags, manifest, content = unpack(ARGV)

local function count(name) redis.call('HINCRBY', stats, counter_prefix .. name, 1) end
local context = with_epoch({
  epochs = epochs, invalidation_log = invalidation_log, toolchains = toolchains,
  blob_prefix = '', new_incarnation = new_incarnation,
  window_ms = tonumber(toolchain_window_ms), tags = tags,
})
local made_epoch = tonumber(epoch)
if incarnation ~= context.incarnation or made_epoch > context.epoch then
  count('stale_incarnations')
  return 'STALE_INC'
end
if made_epoch < context.floor or invalidated_tag(epochs, tags, made_epoch) then
  count('stale_epochs')
  return 'STALE_EPOCH'
end

local fields = fields_of(entry)
local replaced_bytes = 0
for _, id in ipairs(ids_of(fields)) do
  if not unusable_reason(fields, id, context) then return 'PRESENT' end
  replaced_bytes = replaced_bytes + #fields[id .. ':m'] + #fields[id .. ':c']
end
local is_new = not fields['order']
local id = variant_id
redis.call('DEL', entry)
-- Without a lease there is no fence. The new incarnation's name is unique, so it is the stamp.
redis.call('HSET', entry, 'order', id, 'stamp', new_incarnation, id .. ':i', incarnation,
  id .. ':e', epoch, id .. ':x', not_after_s, id .. ':s', 0, id .. ':t', tags, id .. ':b', '',
  id .. ':m', manifest, id .. ':c', content, id .. ':f', 0)
redis.call('EXPIRE', entry, entry_ttl_s)
redis.call('HINCRBY', quota, 'bytes', #manifest + #content - replaced_bytes)
if is_new then redis.call('HINCRBY', quota, 'entries', 1) end
count('published')
return 'OK'
