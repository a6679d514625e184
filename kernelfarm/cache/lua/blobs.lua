-- Shared by the scripts below it: is a whole blob stored?
-- A blob's first byte is 0 (content follows) or 1 (a decimal number of chunks follows).
local function is_stored(key)
  local head = redis.call('GETRANGE', key, 0, 15)
  if head == '' then return false end
  if string.byte(head, 1) == 0 then return true end
  for chunk = 0, tonumber(string.sub(head, 2)) - 1 do
    if redis.call('EXISTS', key .. ':' .. chunk) == 0 then return false end
  end
  return true
end

local function keep(key, ttl_s)
  local head = redis.call('GETRANGE', key, 0, 15)
  redis.call('EXPIRE', key, ttl_s)
  if string.byte(head, 1) == 0 then return end
  for chunk = 0, tonumber(string.sub(head, 2)) - 1 do
    redis.call('EXPIRE', key .. ':' .. chunk, ttl_s)
  end
end
