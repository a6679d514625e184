-- Adds a trace that its publisher signed, if nothing that it depends on was invalidated since it was
-- made: 'OK', 'PRESENT' (a live one is there), 'STALE_INC' or 'STALE_EPOCH'.
-- KEYS: entry, stats, epochs, announcements, toolchains, held
-- ARGV: entry ttl s, counter prefix, fresh incarnation, toolchain window ms,
--       variant id, incarnation, epoch, not after s, tags, manifest, content
local function count(name) redis.call('HINCRBY', KEYS[2], ARGV[2] .. name, 1) end
local inc, epoch, floor = epoch_table(KEYS[3], KEYS[4], ARGV[3])
local id, began, tags = ARGV[5], tonumber(ARGV[7]), ARGV[9]
if ARGV[6] ~= inc or began > epoch then
  count('stale_incarnations')
  return 'STALE_INC'
end
if began < floor or invalidated_tag(KEYS[3], tags, began) then
  count('stale_epochs')
  return 'STALE_EPOCH'
end

local fields = fields_of(KEYS[1])
local context = {
  ep = KEYS[3], tools = KEYS[5], blobs = '', inc = inc, epoch = epoch, floor = floor,
  window_ms = tonumber(ARGV[4]), now = now_ms(), tags = tags,
}
local before = 0
for _, other in ipairs(ids_of(fields)) do
  if not unusable_reason(fields, other, context) then return 'PRESENT' end
  before = before + #fields[other .. ':m'] + #fields[other .. ':c']
end
local is_new = not fields['order']
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'order', id, 'stamp', ARGV[3], id .. ':i', inc, id .. ':e', ARGV[7],
  id .. ':x', ARGV[8], id .. ':s', 0, id .. ':t', tags, id .. ':b', '', id .. ':m', ARGV[10],
  id .. ':c', ARGV[11], id .. ':f', 0)
redis.call('EXPIRE', KEYS[1], ARGV[1])
redis.call('HINCRBY', KEYS[6], 'bytes', #ARGV[10] + #ARGV[11] - before)
if is_new then redis.call('HINCRBY', KEYS[6], 'entries', 1) end
count('published')
return 'OK'
