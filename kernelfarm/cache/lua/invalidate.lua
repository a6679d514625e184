-- Begins an epoch in which every entry with one of the tags is stale, and logs the invalidation.
-- Returns {incarnation, epoch}. The id of a log record is its epoch, so that readers notice gaps.
--   log_entries: about how many records the log keeps
--   counter: the field of `stats` that counts invalidations
--   most_tags: how many tags the table keeps
--   tags: separated by spaces
local epochs, invalidation_log, stats = unpack(KEYS)
local new_incarnation, log_entries, counter, most_tags, tags = unpack(ARGV)

local incarnation = epoch_table(epochs, invalidation_log, new_incarnation)
local epoch = redis.call('HINCRBY', epochs, '@epoch', 1)
for tag in string.gmatch(tags, '%S+') do redis.call('HSET', epochs, tag, epoch) end
redis.call('XADD', invalidation_log, 'MAXLEN', '~', log_entries, epoch .. '-0',
  'tags', tags, 'inc', incarnation)
redis.call('HINCRBY', stats, counter, 1)

-- A table with too many tags discards the older half. The floor makes every entry stale that is not
-- newer than the discarded tags.
if redis.call('HLEN', epochs) > tonumber(most_tags) then
  local flat, known = redis.call('HGETALL', epochs), {}
  for i = 1, #flat, 2 do
    if string.sub(flat[i], 1, 1) ~= '@' then
      known[#known + 1] = {tag = flat[i], epoch = tonumber(flat[i + 1])}
    end
  end
  table.sort(known, function(a, b) return a.epoch < b.epoch end)
  local floor = known[math.ceil(#known / 2)].epoch
  for _, found in ipairs(known) do
    if found.epoch <= floor then redis.call('HDEL', epochs, found.tag) end
  end
  redis.call('HSET', epochs, '@floor', floor)
end
return {incarnation, epoch}
