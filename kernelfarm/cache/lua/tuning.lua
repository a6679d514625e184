-- Keeps the reports on one tuning subject. Stores a report, if `times` is not empty; else lets
-- `reporter` measure, if fewer than `wanted` clients have reported or measure. Returns 1 if the
-- report was stored or `reporter` may measure, else 0, then the times of each report. A report of
-- the same reporter stays unless `replaces` is 1.
--   record: r:REPORTER -> times, m:REPORTER -> until when it measures, in ms since 1970
--   records: the records of the namespace by their last use; the oldest beyond `most_records` go
local record, records = unpack(KEYS)
local record_ttl_s, most_records, most_reports, measuring_ms, wanted, reporter, times, replaces =
  unpack(ARGV)

local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local own_report, own_permit = 'r:' .. reporter, 'm:' .. reporter

local reports, reported, measuring, permitted = {}, 0, 0, false
local fields = redis.call('HGETALL', record)
for at = 1, #fields, 2 do
  local name, value = fields[at], fields[at + 1]
  if name:sub(1, 2) == 'r:' then
    reported = reported + 1
    reports[name] = value
  elseif tonumber(value) <= now_ms then
    redis.call('HDEL', record, name)
  elseif name == own_permit then
    permitted = true
  else
    measuring = measuring + 1
  end
end

local is_done = 0
if times ~= '' then
  redis.call('HDEL', record, own_permit)
  local is_new = not reports[own_report]
  if (is_new and reported < tonumber(most_reports)) or (not is_new and replaces == '1') then
    redis.call('HSET', record, own_report, times)
    reports[own_report] = times
    is_done = 1
  end
elseif not reports[own_report] and reported + measuring < tonumber(wanted) then
  redis.call('HSET', record, own_permit, now_ms + measuring_ms)
  is_done = 1
elseif permitted then
  redis.call('HDEL', record, own_permit)
end

if redis.call('EXISTS', record) == 1 then
  redis.call('EXPIRE', record, record_ttl_s)
  redis.call('ZADD', records, now_ms, record)
  redis.call('EXPIRE', records, record_ttl_s)
  local surplus = redis.call('ZCARD', records) - most_records
  if surplus > 0 then
    for _, oldest in ipairs(redis.call('ZRANGE', records, 0, surplus - 1)) do
      redis.call('DEL', oldest)
      redis.call('ZREM', records, oldest)
    end
  end
end

local result = {is_done}
for _, value in pairs(reports) do result[#result + 1] = value end
return result
