-- Puts back what a table has lost, in one step; only if it still stands where the hub has seen it.
--
-- KEYS: rows, contents, references, counts, meta, log
-- ARGV: instance, session, epoch and revision that the table must have (both 0 = it is as if it
--       never was), epoch, revision and root of what is put back, then a JSON list of rows, each
--       [key, tenant, hash or "" for one that goes, text, enabled "1" | "0", origin, created]
-- Answers: 1, or 0 if the table has moved on.

local known = redis.call("HMGET", meta, "epoch", "revision", "begun")
local epoch, revision = count(known[1]) or 0, count(known[2]) or 0
if epoch ~= tonumber(ARGV[3]) or revision ~= tonumber(ARGV[4]) then
  return 0
end

local fresh = epoch == 0
if fresh then
  if redis.call("EXISTS", rows) == 1 then
    return 0
  end
  -- What is left of them belongs to rows that no longer exist.
  redis.call("DEL", contents, references, counts, log)
  epoch = math.max(now, tonumber(ARGV[5]) + 1)
end

-- One number is left out, so that everybody notices a gap and reads the table whole: one entry of
-- the log stands for all rows.
local number = math.max(revision, tonumber(ARGV[6])) + 1
local wanted = cjson.decode(ARGV[8])
local last = number + math.max(1, #wanted)
local function note()
  return redis.pcall("XADD", log, whole(epoch) .. "-" .. whole(last),
    "key", "$/$/defaults", "instance", ARGV[1], "session", ARGV[2])
end
local answer = note()
if type(answer) == "table" and answer.err then
  -- Somebody else wrote to the log; without it hubs go by the revision.
  redis.call("DEL", log)
  answer = note()
end
if type(answer) == "table" and answer.err then
  return redis.error_reply(answer.err)
end

for _, each in ipairs(wanted) do
  local key, tenant, hash, text, enabled, origin, created = unpack(each)
  local raw = redis.call("HGET", rows, key)
  local old = raw and string.match(raw, "^%d+ (%x+) ")
  number = number + 1
  if old and old ~= hash then
    release(old)
  end
  if hash == "" then
    if redis.call("HDEL", rows, key) == 1 then
      add(counts, tenant, -1)
    end
  else
    if old ~= hash then
      add(references, hash, 1)
    end
    redis.call("HSET", contents, hash, text)
    redis.call("HSET", rows, key, table.concat({ whole(number), hash, enabled, origin, created,
      whole(now) }, " "))
    if not raw then
      add(counts, tenant, 1)
    end
  end
end

local first = fresh and whole(last)
  or string.match(known[3] or "", "^%d+ %d+ (%d+) %d+$") or whole(last)
redis.call("HSET", meta, "epoch", whole(epoch), "revision", whole(last),
  "begun", table.concat({ ARGV[5], ARGV[6], first, ARGV[7] }, " "))
return 1
