-- Shared by the scripts below it. An attempt that ends in order is taken out again, also if its lease
-- is gone by then (a full server evicts leases): what stays are attempts whose holders vanished.
-- Taking one out works on a full server, too.
local function attempt(fence, owner) return fence .. ' ' .. owner end
