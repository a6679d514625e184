-- Library: attempts, the set of a key's leases that have not ended in an orderly way. An orderly
-- end removes its attempt even if the lease is gone (a full server evicts leases), so that the
-- remaining attempts are those whose holders vanished. A full server still allows the removal.
local function attempt_name(fence, owner) return fence .. ' ' .. owner end
