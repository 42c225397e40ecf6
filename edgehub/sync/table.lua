-- What scripts that change the table begin with.
-- KEYS: rows, contents, references, counts, meta, log.

local rows, contents, references, counts, meta, log =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

-- What was damaged is no number: `inf`, `0x10` or more digits than a number holds exactly.
local function count(text)
  return text and #text <= 15 and string.match(text, "^%d+$") and tonumber(text) or nil
end

-- A key of another type is refused before anything is written.
for _, key in ipairs({ rows, contents, references, counts, meta }) do
  redis.call("HLEN", key)
end
local time = redis.call("TIME")
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function whole(number)
  return string.format("%.0f", number)
end

-- Adds to a count and answers the sum; one that was damaged begins again at nothing.
local function add(counters, name, difference)
  local sum = math.max(0, (count(redis.call("HGET", counters, name)) or 0) + difference)
  redis.call("HSET", counters, name, whole(sum))
  return sum
end

-- Takes one use of a content away. Whether others are left is not known where the count was
-- damaged; then the content stays.
local function release(hash)
  local uses = redis.call("HGET", references, hash)
  if uses and not count(uses) then
    return
  end
  if add(references, hash, -1) == 0 then
    redis.call("HDEL", references, hash)
    redis.call("HDEL", contents, hash)
  end
end
