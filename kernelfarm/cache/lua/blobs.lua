-- Shared by the scripts below it: is a whole blob stored?
-- A blob's first byte is even if content follows, odd if the number of its chunks follows.
local function is_stored(key)
  local head = redis.call('GETRANGE', key, 0, 15)
  if head == '' then return false end
  if string.byte(head, 1) % 2 == 0 then return true end
  for chunk = 0, tonumber(string.match(head, '%d+', 2)) - 1 do
    if redis.call('EXISTS', key .. ':' .. chunk) == 0 then return false end
  end
  return true
end

-- How many bytes a blob takes, with its chunks.
local function stored_bytes(key)
  local head = redis.call('GETRANGE', key, 0, 15)
  local bytes = redis.call('STRLEN', key)
  if head == '' or string.byte(head, 1) % 2 == 0 then return bytes end
  for chunk = 0, tonumber(string.match(head, '%d+', 2)) - 1 do
    bytes = bytes + redis.call('STRLEN', key .. ':' .. chunk)
  end
  return bytes
end

local function extend_ttl(key, ttl_s)
  local head = redis.call('GETRANGE', key, 0, 15)
  redis.call('EXPIRE', key, ttl_s)
  if string.byte(head, 1) % 2 == 0 then return end
  for chunk = 0, tonumber(string.match(head, '%d+', 2)) - 1 do
    redis.call('EXPIRE', key .. ':' .. chunk, ttl_s)
  end
end
