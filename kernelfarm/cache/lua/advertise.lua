-- Tells that somebody with this toolchain serves.
-- KEYS: toolchains
-- ARGV: toolchains (`backend@fingerprint`)...
for i = 1, #ARGV do
  local backend = string.match(ARGV[i], '^([^@]+)@')
  redis.call('HSET', KEYS[1], ARGV[i], now_ms(), '@' .. backend, ARGV[i])
end
return 1
