-- Entries of which a live variant depends on one of some tags: their number.
-- KEYS: entries...; ARGV: tags...
local wanted = {}
for i = 1, #ARGV do wanted[ARGV[i]] = true end
local hits = 0
for _, entry in ipairs(KEYS) do
  local fields = redis.call('HGETALL', entry)
  local is_hit = false
  for i = 1, #fields, 2 do
    if string.sub(fields[i], -2) == ':t' then
      for tag in string.gmatch(fields[i + 1], '%S+') do is_hit = is_hit or wanted[tag] end
    end
  end
  if is_hit then hits = hits + 1 end
end
return hits
