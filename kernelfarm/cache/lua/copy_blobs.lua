-- Copies blobs from another part of the farm, where they are not here yet; 0 as soon as one is not
-- there whole. What was copied by then lies here as blobs do that wait for their publication.
-- KEYS: stats (for its slot)
-- ARGV: blob key prefix here, blob key prefix there, blob ttl s, digests
for digest in string.gmatch(ARGV[4], '%x+') do
  local here, there = ARGV[1] .. digest, ARGV[2] .. digest
  if not is_stored(here) then
    if not is_stored(there) then return 0 end
    local head = redis.call('GETRANGE', there, 0, 15)
    if string.byte(head, 1) % 2 == 1 then
      for chunk = 0, tonumber(string.match(head, '%d+', 2)) - 1 do
        redis.call('COPY', there .. ':' .. chunk, here .. ':' .. chunk, 'REPLACE')
      end
    end
    redis.call('COPY', there, here, 'REPLACE')
  end
  extend_ttl(here, ARGV[3])
end
return 1
