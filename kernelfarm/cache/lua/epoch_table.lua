-- Library: the epoch table. Its hash has `@inc` (the incarnation), `@epoch` (the current epoch),
-- `@floor` (entries of an older epoch are stale), `@born` (when the incarnation began, ms since
-- 1970), `@run` (the run id of the server process in which it began), and for each tag the epoch of
-- its last invalidation.

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The run id of this server process: it changes with each restart, and each replica has its own.
local function run_id()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
end

-- Begins an incarnation: all earlier entries become stale, and the invalidation log starts empty.
local function begin_incarnation(epochs, invalidation_log, incarnation)
  redis.call('DEL', epochs, invalidation_log)
  redis.call('HSET', epochs, '@inc', incarnation, '@epoch', 0, '@born', now_ms(), '@run', run_id())
end

-- The incarnation, the current epoch and the floor. If the table was lost, this begins
-- `new_incarnation`; if that is empty, it returns an incarnation that no entry has.
local function epoch_table(epochs, invalidation_log, new_incarnation)
  local found = redis.call('HMGET', epochs, '@inc', '@epoch', '@floor')
  if found[1] and found[2] then
    return found[1], tonumber(found[2]), tonumber(found[3] or '0')
  end
  if new_incarnation == '' then return '', 0, 0 end
  begin_incarnation(epochs, invalidation_log, new_incarnation)
  return new_incarnation, 0, 0
end

-- The first of the space-separated tags that was invalidated after an epoch, or nil.
local function invalidated_tag(epochs, tags, epoch)
  local names = {}
  for tag in string.gmatch(tags, '%S+') do names[#names + 1] = tag end
  for first = 1, #names, 500 do
    local last = math.min(first + 499, #names)
    local found = redis.call('HMGET', epochs, unpack(names, first, last))
    for i, invalidated in ipairs(found) do
      if invalidated and tonumber(invalidated) > epoch then return names[first + i - 1] end
    end
  end
  return nil
end
