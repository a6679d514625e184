-- Gives a lease back without a result; an orderly end is no failed attempt, but those before it were.
-- KEYS: lease, attempts; ARGV: fence, owner, channel, message
local held = redis.call('HMGET', KEYS[1], 'fence', 'owner', 'state')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[1])
if held[3] == 'running' then -- what is only queued was not counted
  local failed = tonumber(redis.call('GET', KEYS[2]) or '0') - 1
  if failed > 0 then
    redis.call('SET', KEYS[2], failed, 'KEEPTTL')
  else
    redis.call('DEL', KEYS[2])
  end
end
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
