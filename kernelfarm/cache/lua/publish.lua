-- Adds variants to a key's entry, if the caller's fence still holds, nothing that they depend on
-- was invalidated since the lease was given, and every blob is there.
-- KEYS: entry, lease, attempts, job, failure, stats, epochs, announcements, toolchains, held, sizes
-- ARGV: fence, blob key prefix, entry ttl s, blob ttl s, counter prefix, channel, message,
--       fresh incarnation, toolchain window ms, most variants, then for each variant:
--       id, incarnation, epoch, not after s, conditions, tags, blob digests, manifest, content
local FIRST, EACH = 11, 9
local fence = ARGV[1]
local function count(name) redis.call('HINCRBY', KEYS[6], ARGV[5] .. name, 1) end
-- The lease ends without a result, in order: waiters look again, and no attempt is counted.
local function refuse(status, counter)
  redis.call('DEL', KEYS[2], KEYS[3])
  count(counter)
  redis.call('PUBLISH', ARGV[6], ARGV[7])
  return status
end

local fields = fields_of(KEYS[1])
if fields['stamp'] == fence then return 'OK' end -- the reply was lost
local lease = redis.call('HMGET', KEYS[2], 'fence', 'inc', 'epoch')
if lease[1] ~= fence then
  count('fenced')
  return 'FENCED'
end
local inc, epoch, floor = epoch_table(KEYS[7], KEYS[8], ARGV[8])
if lease[2] ~= inc then return refuse('STALE_INC', 'stale_incarnations') end

local context = {
  ep = KEYS[7], tools = KEYS[9], blobs = ARGV[2], inc = inc, epoch = epoch, floor = floor,
  window_ms = tonumber(ARGV[9]), now = now_ms(), tags = '',
}
for at = FIRST, #ARGV, EACH do
  if ARGV[at + 1] ~= inc or ARGV[at + 2] ~= lease[3] then
    return refuse('STALE_INC', 'stale_incarnations')
  end
  local began = tonumber(lease[3])
  if began < floor or invalidated_tag(KEYS[7], ARGV[at + 5], began) then
    return refuse('STALE_EPOCH', 'stale_epochs')
  end
  for digest in string.gmatch(ARGV[at + 6], '%x+') do
    if not is_stored(ARGV[2] .. digest) then return 'MISSING_BLOB' end
  end
end

-- What the namespace holds changes by what comes and what goes, until a sweep counts it anew. It
-- never expires: a full server would evict it, and the tenant's quota with it.
local change = 0
local function bytes_of(id)
  return #(fields[id .. ':m'] or '') + #(fields[id .. ':c'] or '')
end

-- Two live results of one toolchain must be equal; what is dead for the publisher is replaced.
local function toolchains(tags)
  local names = {}
  for name in string.gmatch(tags, 'toolchain:%S+') do names[#names + 1] = name end
  return table.concat(names, ' ')
end
local dead = {}
for _, id in ipairs(ids_of(fields)) do
  if unusable_reason(fields, id, context) then dead[id] = true end
end
for at = FIRST, #ARGV, EACH do
  local id, tags = ARGV[at], ARGV[at + 5]
  context.tags = tags
  if fields[id .. ':b'] and not dead[id] and not unusable_reason(fields, id, context)
    and toolchains(fields[id .. ':t']) == toolchains(tags)
    and fields[id .. ':b'] ~= ARGV[at + 6] then
    return refuse('NONDET', 'nondeterministic')
  end
  dead[id] = true
end
for id in pairs(dead) do change = change - bytes_of(id) end
remove(KEYS[1], fields, dead)

local variants = {}
for _, id in ipairs(ids_of(fields)) do
  if not dead[id] then
    local found = {id = id, conditions = tonumber(fields[id .. ':s'])}
    found.fence, found.at = tonumber(fields[id .. ':f']), #variants
    variants[#variants + 1] = found
  end
end
for at = FIRST, #ARGV, EACH do
  local id = ARGV[at]
  redis.call('HSET', KEYS[1], id .. ':i', ARGV[at + 1], id .. ':e', ARGV[at + 2],
    id .. ':x', ARGV[at + 3], id .. ':s', ARGV[at + 4], id .. ':t', ARGV[at + 5],
    id .. ':b', ARGV[at + 6], id .. ':m', ARGV[at + 7], id .. ':c', ARGV[at + 8], id .. ':f', fence)
  fields[id .. ':m'], fields[id .. ':c'] = ARGV[at + 7], ARGV[at + 8]
  change = change + bytes_of(id)
  variants[#variants + 1] =
    {id = id, conditions = tonumber(ARGV[at + 4]), fence = tonumber(fence), at = #variants}
end

-- Too many: the oldest of those with conditions goes; a general one never does.
local surplus = {}
for _ = tonumber(ARGV[10]) + 1, #variants do
  local oldest
  for _, found in ipairs(variants) do
    local is_older = not oldest or found.fence < oldest.fence
    if not surplus[found.id] and found.conditions > 0 and is_older then oldest = found end
  end
  if oldest then
    surplus[oldest.id] = true
    change = change - bytes_of(oldest.id)
  end
end
table.sort(variants, function(a, b)
  if a.conditions ~= b.conditions then return a.conditions > b.conditions end
  return a.at < b.at
end)
local order = {}
for _, found in ipairs(variants) do order[#order + 1] = found.id end
redis.call('HSET', KEYS[1], 'order', table.concat(order, ' '), 'stamp', fence)
remove(KEYS[1], {order = table.concat(order, ' ')}, surplus)
redis.call('EXPIRE', KEYS[1], ARGV[3])
for at = FIRST, #ARGV, EACH do
  for digest in string.gmatch(ARGV[at + 6], '%x+') do
    extend_ttl(ARGV[2] .. digest, ARGV[4])
    local bytes = stored_bytes(ARGV[2] .. digest)
    if redis.call('HSETNX', KEYS[11], digest, bytes) == 1 then change = change + bytes end
  end
end
redis.call('HINCRBY', KEYS[10], 'bytes', change)
if not fields['order'] then redis.call('HINCRBY', KEYS[10], 'entries', 1) end
redis.call('EXPIRE', KEYS[11], ARGV[4])

-- A flushed server knows no toolchains until they are reported again: who publishes has one.
for at = FIRST, #ARGV, EACH do
  for name, backend in string.gmatch(ARGV[at + 5], 'toolchain:(([^%s@]+)@%S+)') do
    redis.call('HSETNX', KEYS[9], name, context.now)
    redis.call('HSETNX', KEYS[9], '@' .. backend, name)
  end
end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
count('published')
redis.call('PUBLISH', ARGV[6], ARGV[7])
return 'OK'
