-- Begins a new epoch in which everything is stale that depends on one of some tags; announces it.
-- The announcement's id in the stream is the epoch, so that a gap can be seen.
-- KEYS: epochs, announcements, stats
-- ARGV: fresh incarnation, announcements to keep, counter, most tags, tags...
local inc = epoch_table(KEYS[1], KEYS[2], ARGV[1])
local epoch = redis.call('HINCRBY', KEYS[1], '@epoch', 1)
local tags = {}
for i = 5, #ARGV do
  redis.call('HSET', KEYS[1], ARGV[i], epoch)
  tags[#tags + 1] = ARGV[i]
end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], epoch .. '-0',
  'tags', table.concat(tags, ' '), 'inc', inc)
redis.call('HINCRBY', KEYS[3], ARGV[3], 1)

-- Too many tags: the older half is forgotten, and what is as old as they is cold, whatever it
-- depends on.
if redis.call('HLEN', KEYS[1]) > tonumber(ARGV[4]) then
  local flat, known = redis.call('HGETALL', KEYS[1]), {}
  for i = 1, #flat, 2 do
    if string.sub(flat[i], 1, 1) ~= '@' then
      known[#known + 1] = {tag = flat[i], epoch = tonumber(flat[i + 1])}
    end
  end
  table.sort(known, function(a, b) return a.epoch < b.epoch end)
  local floor = known[math.ceil(#known / 2)].epoch
  for _, found in ipairs(known) do
    if found.epoch <= floor then redis.call('HDEL', KEYS[1], found.tag) end
  end
  redis.call('HSET', KEYS[1], '@floor', floor)
end
return {inc, epoch}
