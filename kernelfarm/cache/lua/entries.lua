-- Shared by the scripts below it: the variants of an entry, and what makes one of them dead.
--
-- An entry is a hash: `order` (variant ids, most specific first), `stamp` (fence of the last
-- publication), and for each variant `<id>:` with i (incarnation), e (epoch), x (not after, s),
-- s (conditions of its guard), f (fence), t (tags), b (blob digests), m (manifest), c (content).

local function fields_of(entry)
  local flat = redis.call('HGETALL', entry)
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end

-- What a variant is judged by. Manifests and contents stay where they are: a large string costs a
-- script several copies of it.
local function facts_of(entry)
  local head = redis.call('HMGET', entry, 'order', 'stamp')
  local fields = {order = head[1] or nil, stamp = head[2] or nil}
  for id in string.gmatch(head[1] or '', '%x+') do
    local names = {id .. ':i', id .. ':e', id .. ':x', id .. ':t', id .. ':b'}
    local facts = redis.call('HMGET', entry, unpack(names))
    for at, name in ipairs(names) do fields[name] = facts[at] or nil end
  end
  return fields
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Which process this server is: another one after each restart, and on each replica.
local function run_id()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
end

-- A new life: everything from before is cold, and announcements from before are void.
local function begin_incarnation(ep, inv, fresh)
  redis.call('DEL', ep, inv)
  redis.call('HSET', ep, '@inc', fresh, '@epoch', 0, '@born', now_ms(), '@run', run_id())
end

-- The life of the epoch table, its epoch, and the one before which all is cold, because its tags
-- were forgotten. A lost table begins a new life, if one is offered.
local function epoch_table(ep, inv, fresh)
  local at = redis.call('HMGET', ep, '@inc', '@epoch', '@floor')
  if at[1] and at[2] then return at[1], tonumber(at[2]), tonumber(at[3] or '0') end
  if fresh == '' then return '', 0, 0 end
  begin_incarnation(ep, inv, fresh)
  return fresh, 0, 0
end

-- The first of some tags that was invalidated after an epoch, or nil.
local function invalidated_tag(ep, tags, epoch)
  local names = {}
  for tag in string.gmatch(tags, '%S+') do names[#names + 1] = tag end
  for first = 1, #names, 500 do
    local last = math.min(first + 499, #names)
    local epochs = redis.call('HMGET', ep, unpack(names, first, last))
    for i, found in ipairs(epochs) do
      if found and tonumber(found) > epoch then return names[first + i - 1] end
    end
  end
  return nil
end

-- The first toolchain among some tags that nobody advertises, or nil. A toolchain is advertised
-- for a while after its last report, and as long as it is the newest one of its backend.
local function unadvertised(tools, tags, window_ms, now)
  for name, backend in string.gmatch(tags, 'toolchain:(([^%s@]+)@%S+)') do
    local at = redis.call('HMGET', tools, name, '@' .. backend)
    local is_recent = at[1] and tonumber(at[1]) + window_ms > now
    if not is_recent and at[2] ~= name then return name end
  end
  return nil
end

-- What makes a variant dead for a caller with some tags of its own, or nil: a word, and what.
-- `world` has: ep, tools, blobs (key prefix), inc, epoch, floor, window_ms, now, tags.
local function unusable_reason(fields, id, context)
  if fields[id .. ':i'] ~= context.inc then return 'incarnation', context.inc end
  local epoch = tonumber(fields[id .. ':e'])
  -- An epoch of the future: the table went back in time.
  if epoch > context.epoch then return 'incarnation', fields[id .. ':e'] end
  if epoch < context.floor then return 'epoch', 'discarded' end
  if epoch < context.epoch then
    local tag = invalidated_tag(context.ep, fields[id .. ':t'] .. ' ' .. context.tags, epoch)
    if tag then return 'epoch', tag end
  end
  if tonumber(fields[id .. ':x']) * 1000 < context.now then return 'expired', fields[id .. ':x'] end
  local tool = unadvertised(context.tools, fields[id .. ':t'], context.window_ms, context.now)
  if tool then return 'toolchain', tool end
  for digest in string.gmatch(fields[id .. ':b'], '%x+') do
    if not is_stored(context.blobs .. digest) then return 'missing_blob', digest end
  end
  return nil
end

local function ids_of(fields)
  local ids = {}
  for id in string.gmatch(fields['order'] or '', '%x+') do ids[#ids + 1] = id end
  return ids
end

-- Removes variants from an entry, and the entry with its last one.
local function remove(entry, fields, dead)
  local order, gone = {}, {}
  for _, id in ipairs(ids_of(fields)) do
    if dead[id] then
      for _, part in ipairs({'i', 'e', 'x', 's', 'f', 't', 'b', 'm', 'c'}) do
        gone[#gone + 1] = id .. ':' .. part
      end
    else
      order[#order + 1] = id
    end
  end
  if #gone == 0 then return end
  if #order == 0 then
    redis.call('DEL', entry)
  else
    redis.call('HDEL', entry, unpack(gone))
    redis.call('HSET', entry, 'order', table.concat(order, ' '))
  end
end
