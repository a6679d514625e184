-- An entry's live variants: {'hit', incarnation, epoch, stamp, id, ...}, or {reason, incarnation,
-- epoch, stamp, what}. The caller reads the entry itself in the same transaction. A variant with a
-- missing blob is deleted; other dead ones stay for the sweeper, so that a miss can be explained.
-- KEYS: entry, stats, epochs, announcements, toolchains
-- ARGV: blob key prefix, entry ttl s, blob ttl s, counter prefix, 1 to count the look-up,
--       fresh incarnation, toolchain window ms, the caller's tags, 1 if the caller may write
local may_write = ARGV[9] == '1'
local function count(name)
  if may_write and ARGV[5] == '1' then redis.call('HINCRBY', KEYS[2], ARGV[4] .. name, 1) end
end

local inc, epoch, floor = epoch_table(KEYS[3], KEYS[4], may_write and ARGV[6] or '')
local fields = facts_of(KEYS[1])
local stamp = fields['stamp'] or ''
local context = {
  ep = KEYS[3], tools = KEYS[5], blobs = ARGV[1], inc = inc, epoch = epoch, floor = floor,
  window_ms = tonumber(ARGV[7]), now = now_ms(), tags = ARGV[8],
}
local reply = {'hit', inc, epoch, stamp}
local reason, what, incomplete = 'absent', '', {}
for _, id in ipairs(ids_of(fields)) do
  local dead, detail = unusable_reason(fields, id, context)
  if dead then
    reason, what = dead, detail
    if dead == 'missing_blob' then incomplete[id] = true end
  else
    reply[#reply + 1] = id
  end
end
if may_write and next(incomplete) then
  remove(KEYS[1], fields, incomplete)
  redis.call('HINCRBY', KEYS[2], ARGV[4] .. 'missing_blobs', 1)
end
if #reply == 4 then
  count('misses')
  if reason ~= 'absent' and reason ~= 'missing_blob' then count(reason .. '_misses') end
  return {reason, inc, epoch, stamp, what}
end

-- What is used lives on; the blobs always longer than the manifests that name them.
if may_write and redis.call('TTL', KEYS[1]) < tonumber(ARGV[2]) / 2 then
  redis.call('EXPIRE', KEYS[1], ARGV[2])
  for _, id in ipairs(ids_of(fields)) do
    if not incomplete[id] then
      for digest in string.gmatch(fields[id .. ':b'], '%x+') do
        if redis.call('EXISTS', ARGV[1] .. digest) == 1 then extend_ttl(ARGV[1] .. digest, ARGV[3]) end
      end
    end
  end
end
count('hits')
return reply
