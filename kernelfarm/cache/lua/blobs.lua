-- Library: blobs. The value under a blob's key is the content if its first byte is even. If the
-- byte is odd, the value holds the number of chunks, stored under `<key>:0`, `<key>:1`, ...

-- The number of a blob's chunks: 0 if the value is the content, nil if the blob is not stored.
local function chunk_count(key)
  local head = redis.call('GETRANGE', key, 0, 15)
  if head == '' then return nil end
  if string.byte(head, 1) % 2 == 0 then return 0 end
  return tonumber(string.match(head, '%d+', 2))
end

-- Whether a blob is stored with all its chunks.
local function is_stored(key)
  local chunks = chunk_count(key)
  if not chunks then return false end
  for chunk = 0, chunks - 1 do
    if redis.call('EXISTS', key .. ':' .. chunk) == 0 then return false end
  end
  return true
end

-- The stored size of a blob and its chunks, in bytes.
local function stored_bytes(key)
  local bytes = redis.call('STRLEN', key)
  for chunk = 0, (chunk_count(key) or 0) - 1 do
    bytes = bytes + redis.call('STRLEN', key .. ':' .. chunk)
  end
  return bytes
end

-- Sets the time to live of a blob and its chunks.
local function extend_ttl(key, ttl_s)
  redis.call('EXPIRE', key, ttl_s)
  for chunk = 0, (chunk_count(key) or 0) - 1 do
    redis.call('EXPIRE', key .. ':' .. chunk, ttl_s)
  end
end
