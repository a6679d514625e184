-- Copies blobs from another namespace of the farm unless they are stored here. Returns 1, or 0 as
-- soon as a blob is complete in neither namespace. The blobs copied until then stay; like every
-- blob that no entry names, a later sweep deletes them.
--   stats: not used; it routes the script to the server that has the farm's keys
--   digests: SHA-256 in hex, separated by spaces
local stats = unpack(KEYS)
local blob_prefix, source_blob_prefix, blob_ttl_s, digests = unpack(ARGV)

for digest in string.gmatch(digests, '%x+') do
  local target, source = blob_prefix .. digest, source_blob_prefix .. digest
  if not is_stored(target) then
    if not is_stored(source) then return 0 end
    for chunk = 0, chunk_count(source) - 1 do
      redis.call('COPY', source .. ':' .. chunk, target .. ':' .. chunk, 'REPLACE')
    end
    redis.call('COPY', source, target, 'REPLACE')
  end
  extend_ttl(target, blob_ttl_s)
end
return 1
