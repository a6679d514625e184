-- Records that toolchains are in use.
--   names: `backend@fingerprint`, separated by spaces
local toolchains = unpack(KEYS)
local names = unpack(ARGV)

for name, backend in string.gmatch(names, '(([^%s@]+)@%S+)') do
  redis.call('HSET', toolchains, name, now_ms(), '@' .. backend, name)
end
return 1
