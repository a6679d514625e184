-- Removes an entry's stale and incomplete variants: {live variants, bytes, stale variants,
-- incomplete variants, blob digests}. Bytes and digests are those of the live variants.
local entry, epochs, invalidation_log, toolchains = unpack(KEYS)
local blob_prefix, new_incarnation, toolchain_window_ms = unpack(ARGV)

local context = with_epoch({
  epochs = epochs, invalidation_log = invalidation_log, toolchains = toolchains,
  blob_prefix = blob_prefix, new_incarnation = new_incarnation,
  window_ms = tonumber(toolchain_window_ms), tags = '',
})
local fields = fields_of(entry)
local removed, live, bytes, stale, incomplete, digests = {}, 0, 0, 0, 0, {}
for _, id in ipairs(ids_of(fields)) do
  local reason = unusable_reason(fields, id, context)
  -- A toolchain may be advertised again, so its variants stay until their time to live ends.
  if reason and reason ~= 'toolchain' then
    removed[id] = true
    if reason == 'missing_blob' then incomplete = incomplete + 1 else stale = stale + 1 end
  else
    live = live + 1
    bytes = bytes + #fields[id .. ':m'] + #fields[id .. ':c']
    for digest in string.gmatch(fields[id .. ':b'], '%x+') do digests[#digests + 1] = digest end
  end
end
remove_variants(entry, fields, removed)
return {live, bytes, stale, incomplete, table.concat(digests, ' ')}
