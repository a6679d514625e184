-- Milliseconds until a key's lease lapses, or -1 if there is nothing to wait for.
-- KEYS: manifest, failure, lease
if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then return -1 end
local left = redis.call('PTTL', KEYS[3])
if left < 0 then return -1 end
return left
