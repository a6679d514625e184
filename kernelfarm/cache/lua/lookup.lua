-- Finds the live variants of an entry: {'hit', incarnation, epoch, stamp, id, ...}, or {reason,
-- incarnation, epoch, stamp, detail}. The caller reads the entry itself in the same transaction.
-- Variants with a missing blob are deleted. Other unusable variants stay until a sweep, so that the
-- miss can be explained.
--   is_counted: 1 to count the look-up
--   tags: the caller's own tags, separated by spaces
--   may_write: 1 if the caller may write
local entry, stats, epochs, invalidation_log, toolchains = unpack(KEYS)
local blob_prefix, entry_ttl_s, blob_ttl_s, counter_prefix, is_counted, new_incarnation,
  toolchain_window_ms, tags, may_write = unpack(ARGV)

local is_writing = may_write == '1'
local function count(name)
  if is_writing and is_counted == '1' then
    redis.call('HINCRBY', stats, counter_prefix .. name, 1)
  end
end

local context = with_epoch({
  epochs = epochs, invalidation_log = invalidation_log, toolchains = toolchains,
  blob_prefix = blob_prefix, new_incarnation = is_writing and new_incarnation or '',
  window_ms = tonumber(toolchain_window_ms), tags = tags,
})
local fields = facts_of(entry)
local stamp = fields['stamp'] or ''
local reply = {'hit', context.incarnation, context.epoch, stamp}
local reason, detail, incomplete = 'absent', '', {}
for _, id in ipairs(ids_of(fields)) do
  local unusable, why = unusable_reason(fields, id, context)
  if unusable then
    reason, detail = unusable, why
    if unusable == 'missing_blob' then incomplete[id] = true end
  else
    reply[#reply + 1] = id
  end
end
if is_writing and next(incomplete) then
  remove_variants(entry, fields, incomplete)
  redis.call('HINCRBY', stats, counter_prefix .. 'missing_blobs', 1)
end
if #reply == 4 then
  count('misses')
  if reason ~= 'absent' and reason ~= 'missing_blob' then count(reason .. '_misses') end
  return {reason, context.incarnation, context.epoch, stamp, detail}
end

-- A hit extends the time to live. Blobs always outlive the manifests that name them.
if is_writing and redis.call('TTL', entry) < tonumber(entry_ttl_s) / 2 then
  redis.call('EXPIRE', entry, entry_ttl_s)
  for _, id in ipairs(ids_of(fields)) do
    if not incomplete[id] then
      for digest in string.gmatch(fields[id .. ':b'], '%x+') do
        local blob = blob_prefix .. digest
        if redis.call('EXISTS', blob) == 1 then extend_ttl(blob, blob_ttl_s) end
      end
    end
  end
end
count('hits')
return reply
