-- Adds variants to a key's entry if the lease has the caller's fence, no dependency was invalidated
-- since the lease was acquired, and every blob is stored. Returns a `PublishStatus`. FENCED and
-- MISSING_BLOB leave the lease as it is; every other status ends it.
--   quota, sizes: what the namespace holds, and the stored size of each blob that this counts
--   message: what waiters listen for on the channel
--   After the named arguments, nine arguments follow for each variant.
local entry, lease, attempts, job, failure, stats, epochs, invalidation_log, toolchains, quota,
  sizes = unpack(KEYS)
local fence, blob_prefix, entry_ttl_s, blob_ttl_s, counter_prefix, channel, message,
  new_incarnation, toolchain_window_ms, most_variants = unpack(ARGV, 1, 10)

local published = {}
for first = 11, #ARGV, 9 do
  local variant_id, incarnation, epoch, not_after_s, conditions, tags, blobs, manifest, content =
    unpack(ARGV, first, first + 8)
  published[#published + 1] = {
    id = variant_id, incarnation = incarnation, epoch = epoch, not_after_s = not_after_s,
    conditions = conditions, tags = tags, blobs = blobs, manifest = manifest, content = content,
  }
end

local function count(name) redis.call('HINCRBY', stats, counter_prefix .. name, 1) end
-- Ends the lease in an orderly way without a result: waiters look again, and no attempt is counted.
local function refuse(status, counter)
  redis.call('DEL', lease, attempts)
  count(counter)
  redis.call('PUBLISH', channel, message)
  return status
end

local fields = fields_of(entry)
if fields['stamp'] == fence then return 'OK' end -- repeated, because the first reply was lost
local held = redis.call('HMGET', lease, 'fence', 'inc', 'epoch')
if held[1] ~= fence then
  count('fenced')
  return 'FENCED'
end
local context = with_epoch({
  epochs = epochs, invalidation_log = invalidation_log, toolchains = toolchains,
  blob_prefix = blob_prefix, new_incarnation = new_incarnation,
  window_ms = tonumber(toolchain_window_ms), tags = '',
})
if held[2] ~= context.incarnation then return refuse('STALE_INC', 'stale_incarnations') end

local lease_epoch = tonumber(held[3])
for _, variant in ipairs(published) do
  if variant.incarnation ~= context.incarnation or variant.epoch ~= held[3] then
    return refuse('STALE_INC', 'stale_incarnations')
  end
  if lease_epoch < context.floor or invalidated_tag(epochs, variant.tags, lease_epoch) then
    return refuse('STALE_EPOCH', 'stale_epochs')
  end
  for digest in string.gmatch(variant.blobs, '%x+') do
    if not is_stored(blob_prefix .. digest) then return 'MISSING_BLOB' end
  end
end

-- The quota's bytes change by what is added and removed, until a sweep counts them again. The quota
-- has no time to live, because a full server would evict it.
local added_bytes = 0
local function bytes_of(id)
  return #(fields[id .. ':m'] or '') + #(fields[id .. ':c'] or '')
end

-- Two live results of one toolchain must be equal. Variants that are unusable for the publisher are
-- replaced.
local function toolchains_of(tags)
  local names = {}
  for name in string.gmatch(tags, 'toolchain:%S+') do names[#names + 1] = name end
  return table.concat(names, ' ')
end
local replaced = {}
for _, id in ipairs(ids_of(fields)) do
  if unusable_reason(fields, id, context) then replaced[id] = true end
end
for _, variant in ipairs(published) do
  local id = variant.id
  context.tags = variant.tags
  if fields[id .. ':b'] and not replaced[id] and not unusable_reason(fields, id, context)
    and toolchains_of(fields[id .. ':t']) == toolchains_of(variant.tags)
    and fields[id .. ':b'] ~= variant.blobs then
    return refuse('NONDET', 'nondeterministic')
  end
  replaced[id] = true
end
for id in pairs(replaced) do added_bytes = added_bytes - bytes_of(id) end
remove_variants(entry, fields, replaced)

local variants = {}
for _, id in ipairs(ids_of(fields)) do
  if not replaced[id] then
    variants[#variants + 1] = {
      id = id, conditions = tonumber(fields[id .. ':s']), fence = tonumber(fields[id .. ':f']),
      at = #variants,
    }
  end
end
for _, variant in ipairs(published) do
  local id = variant.id
  redis.call('HSET', entry, id .. ':i', variant.incarnation, id .. ':e', variant.epoch,
    id .. ':x', variant.not_after_s, id .. ':s', variant.conditions, id .. ':t', variant.tags,
    id .. ':b', variant.blobs, id .. ':m', variant.manifest, id .. ':c', variant.content,
    id .. ':f', fence)
  fields[id .. ':m'], fields[id .. ':c'] = variant.manifest, variant.content
  added_bytes = added_bytes + bytes_of(id)
  variants[#variants + 1] = {
    id = id, conditions = tonumber(variant.conditions), fence = tonumber(fence), at = #variants,
  }
end

-- Too many variants: the oldest ones with conditions are removed, the general variant never.
local surplus = {}
for _ = tonumber(most_variants) + 1, #variants do
  local oldest
  for _, found in ipairs(variants) do
    local is_older = not oldest or found.fence < oldest.fence
    if not surplus[found.id] and found.conditions > 0 and is_older then oldest = found end
  end
  if oldest then
    surplus[oldest.id] = true
    added_bytes = added_bytes - bytes_of(oldest.id)
  end
end
table.sort(variants, function(a, b)
  if a.conditions ~= b.conditions then return a.conditions > b.conditions end
  return a.at < b.at
end)
local order = {}
for _, found in ipairs(variants) do order[#order + 1] = found.id end
redis.call('HSET', entry, 'order', table.concat(order, ' '), 'stamp', fence)
remove_variants(entry, {order = table.concat(order, ' ')}, surplus)
redis.call('EXPIRE', entry, entry_ttl_s)
for _, variant in ipairs(published) do
  for digest in string.gmatch(variant.blobs, '%x+') do
    extend_ttl(blob_prefix .. digest, blob_ttl_s)
    local bytes = stored_bytes(blob_prefix .. digest)
    if redis.call('HSETNX', sizes, digest, bytes) == 1 then added_bytes = added_bytes + bytes end
  end
end
redis.call('HINCRBY', quota, 'bytes', added_bytes)
if not fields['order'] then redis.call('HINCRBY', quota, 'entries', 1) end
redis.call('EXPIRE', sizes, blob_ttl_s)

-- A flushed server has no toolchains until they are reported again, but a publisher has one.
for _, variant in ipairs(published) do
  for name, backend in string.gmatch(variant.tags, 'toolchain:(([^%s@]+)@%S+)') do
    redis.call('HSETNX', toolchains, name, context.now)
    redis.call('HSETNX', toolchains, '@' .. backend, name)
  end
end
redis.call('DEL', lease, attempts, job, failure)
count('published')
redis.call('PUBLISH', channel, message)
return 'OK'
