-- Library: the variants of an entry, and the reasons for which a variant is unusable.
--
-- An entry is a hash: `order` (variant ids, most specific first), `stamp` (fence of the last
-- publication), and for each variant `<id>:` with i (incarnation), e (epoch), x (not after, s since
-- 1970), s (number of its guard's conditions), f (fence), t (tags), b (blob digests), m (manifest),
-- c (content).

local function fields_of(entry)
  local flat = redis.call('HGETALL', entry)
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end

-- The fields that `unusable_reason` needs. Manifests and contents are left out, because a script
-- copies each large string several times.
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

local function ids_of(fields)
  local ids = {}
  for id in string.gmatch(fields['order'] or '', '%x+') do ids[#ids + 1] = id end
  return ids
end

-- The first toolchain among the tags that is not advertised, or nil. A toolchain is advertised for
-- `window_ms` after its last report, and as long as it is the newest one of its backend.
local function unadvertised(toolchains, tags, window_ms, now)
  for name, backend in string.gmatch(tags, 'toolchain:(([^%s@]+)@%S+)') do
    local found = redis.call('HMGET', toolchains, name, '@' .. backend)
    local is_recent = found[1] and tonumber(found[1]) + window_ms > now
    if not is_recent and found[2] ~= name then return name end
  end
  return nil
end

-- Adds incarnation, epoch, floor and time to a context for `unusable_reason`. The context names the
-- keys `epochs`, `invalidation_log` and `toolchains`, the `blob_prefix`, the `new_incarnation` for
-- a lost epoch table, `window_ms` for `unadvertised`, and the `tags` of the caller.
local function with_epoch(context)
  context.incarnation, context.epoch, context.floor =
    epoch_table(context.epochs, context.invalidation_log, context.new_incarnation)
  context.now = now_ms()
  return context
end

-- Why a variant is unusable for the caller whose tags the context has: the reason and its detail,
-- or nil.
local function unusable_reason(fields, id, context)
  if fields[id .. ':i'] ~= context.incarnation then return 'incarnation', context.incarnation end
  local epoch = tonumber(fields[id .. ':e'])
  -- An epoch of the future: the table was replaced by an older copy.
  if epoch > context.epoch then return 'incarnation', fields[id .. ':e'] end
  if epoch < context.floor then return 'epoch', 'discarded' end
  if epoch < context.epoch then
    local tag = invalidated_tag(context.epochs, fields[id .. ':t'] .. ' ' .. context.tags, epoch)
    if tag then return 'epoch', tag end
  end
  if tonumber(fields[id .. ':x']) * 1000 < context.now then return 'expired', fields[id .. ':x'] end
  local toolchain =
    unadvertised(context.toolchains, fields[id .. ':t'], context.window_ms, context.now)
  if toolchain then return 'toolchain', toolchain end
  for digest in string.gmatch(fields[id .. ':b'], '%x+') do
    if not is_stored(context.blob_prefix .. digest) then return 'missing_blob', digest end
  end
  return nil
end

-- Removes the variants whose ids are keys of `unwanted`; removes an entry with its last variant.
local function remove_variants(entry, fields, unwanted)
  local order, removed = {}, {}
  for _, id in ipairs(ids_of(fields)) do
    if unwanted[id] then
      for _, field in ipairs({'i', 'e', 'x', 's', 'f', 't', 'b', 'm', 'c'}) do
        removed[#removed + 1] = id .. ':' .. field
      end
    else
      order[#order + 1] = id
    end
  end
  if #removed == 0 then return end
  if #order == 0 then
    redis.call('DEL', entry)
  else
    redis.call('HDEL', entry, unpack(removed))
    redis.call('HSET', entry, 'order', table.concat(order, ' '))
  end
end
