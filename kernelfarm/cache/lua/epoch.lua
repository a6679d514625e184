-- The life of the epoch table and its epoch; a gateway also tells how far it has obeyed.
-- KEYS: epochs, announcements, gateways
-- ARGV: fresh incarnation, gateway or '', "incarnation:epoch" that it has obeyed
local inc, epoch = epoch_table(KEYS[1], KEYS[2], ARGV[1])
if ARGV[2] ~= '' then redis.call('HSET', KEYS[3], ARGV[2], now_ms() .. ':' .. ARGV[3]) end
return {inc, epoch}
