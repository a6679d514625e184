-- Shared by the scripts below it: an orderly end is no failed attempt, but those before it were.
local function uncount(attempts)
  local failed = tonumber(redis.call('GET', attempts) or '0') - 1
  if failed > 0 then
    redis.call('SET', attempts, failed, 'KEEPTTL')
  else
    redis.call('DEL', attempts)
  end
end
