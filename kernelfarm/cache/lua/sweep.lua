-- Frees an entry's dead variants: {live variants, bytes, dead, holes, blob digests}.
-- KEYS: entry, epochs, announcements, toolchains
-- ARGV: blob key prefix, fresh incarnation, toolchain window ms, 1 to free
local inc, epoch, floor = epoch_table(KEYS[2], KEYS[3], ARGV[2])
local fields = fields_of(KEYS[1])
local context = {
  ep = KEYS[2], tools = KEYS[4], blobs = ARGV[1], inc = inc, epoch = epoch, floor = floor,
  window_ms = tonumber(ARGV[3]), now = now_ms(), tags = '',
}
local gone, live, bytes, dead, incomplete, digests = {}, 0, 0, 0, 0, {}
for _, id in ipairs(ids_of(fields)) do
  local reason = unusable_reason(fields, id, context)
  -- A toolchain may be advertised again: its entries are left to their time to live.
  if reason and reason ~= 'toolchain' then
    gone[id] = true
    if reason == 'missing_blob' then incomplete = incomplete + 1 else dead = dead + 1 end
  else
    live = live + 1
    bytes = bytes + #fields[id .. ':m'] + #fields[id .. ':c']
    for digest in string.gmatch(fields[id .. ':b'], '%x+') do digests[#digests + 1] = digest end
  end
end
if ARGV[4] == '1' then remove(KEYS[1], fields, gone) end
return {live, bytes, dead, incomplete, table.concat(digests, ' ')}
