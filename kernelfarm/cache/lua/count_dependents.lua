-- Counts the entries of which a variant has one of the tags, whether it is live or not.
--   KEYS: the entries
--   tags: separated by spaces
local tags = unpack(ARGV)

local is_searched = {}
for tag in string.gmatch(tags, '%S+') do is_searched[tag] = true end
local dependents = 0
for _, entry in ipairs(KEYS) do
  local fields = redis.call('HGETALL', entry)
  local is_dependent = false
  for i = 1, #fields, 2 do
    if string.sub(fields[i], -2) == ':t' then
      for tag in string.gmatch(fields[i + 1], '%S+') do
        is_dependent = is_dependent or is_searched[tag]
      end
    end
  end
  if is_dependent then dependents = dependents + 1 end
end
return dependents
