-- One write of the routing table: checks, then rows, revisions and log in one step.
--
-- KEYS: rows, contents, references, counts, meta, log
-- ARGV: instance, session, log entries to keep, expected revision of the table or "",
--       latest epoch that the hub knows, which the next one must exceed; 0 = it knows of no table;
--       then nine for each change:
--       key, tenant, "put" | "keep" | "delete", expected revision or "", hash, text,
--       enabled "1" | "0" | "", origin, quota
--
-- A command that fails in a script does not undo those before it, so everything that may be
-- refused is refused before the first write, and the first write is the one to the log: it fails
-- if its id is not above all others.

local instance, session, kept = ARGV[1], ARGV[2], tonumber(ARGV[3])

local known = redis.call("HMGET", meta, "epoch", "revision")
local epoch, revision = count(known[1]), count(known[2])
local begins, blank = epoch == nil or revision == nil, redis.call("EXISTS", rows) == 0
if begins then
  if blank and tonumber(ARGV[5]) > 0 then
    return { "LOST" }
  end
  epoch, revision = math.max(now, tonumber(ARGV[5]) + 1), 0
end

if ARGV[4] ~= "" and tonumber(ARGV[4]) ~= revision then
  return { "CONFLICT", revision }
end

local changes, added = {}, {}
for at = 6, #ARGV, 9 do
  local change = {
    key = ARGV[at], tenant = ARGV[at + 1], kind = ARGV[at + 2], expected = ARGV[at + 3],
    hash = ARGV[at + 4], text = ARGV[at + 5], enabled = ARGV[at + 6], origin = ARGV[at + 7],
    quota = tonumber(ARGV[at + 8]),
  }
  local raw = redis.call("HGET", rows, change.key)
  change.raw = raw
  local present = 0
  if raw then
    local number, hash, enabled, origin, created, modified =
      string.match(raw, "^(%d+) (%x+) ([01]) (%l+) (%d+) (%d+)$")
    -- A row that cannot be read is there, at no revision; it can be overwritten and deleted.
    change.found = hash ~= nil and count(number) ~= nil and count(created) ~= nil
    if change.found then
      present = count(number)
      change.old = hash
      change.was = enabled
      change.created = created
      change.origin_was = origin
    end
  end
  if change.expected ~= "" and tonumber(change.expected) ~= present then
    return { "PRECONDITION", (at - 6) / 9, present }
  end
  if change.expected == "0" and raw then
    return { "PRECONDITION", (at - 6) / 9, present }
  end
  if change.kind == "keep" and not change.found then
    return { "MISSING", (at - 6) / 9 }
  end
  if change.kind == "keep" then
    change.hash = change.old
    change.origin = change.origin_was
  end
  if change.kind == "delete" then
    change.needed = raw and true or false
    if raw then
      added[change.tenant] = (added[change.tenant] or 0) - 1
    end
  else
    if change.enabled == "" then
      change.enabled = change.was or "1"
    end
    change.needed = not change.found or change.old ~= change.hash
      or change.was ~= change.enabled or change.origin_was ~= change.origin
    if not raw then
      added[change.tenant] = (added[change.tenant] or 0) + 1
      local rows_before = count(redis.call("HGET", counts, change.tenant)) or 0
      if rows_before + added[change.tenant] > change.quota then
        return { "QUOTA", (at - 6) / 9 }
      end
    end
  end
  changes[#changes + 1] = change
end

local function note(number, change)
  return redis.pcall("XADD", log, "MAXLEN", "~", kept, whole(epoch) .. "-" .. whole(number),
    "key", change.key, "instance", instance, "session", session)
end

local number = revision
for _, change in ipairs(changes) do
  if change.needed then
    number = number + 1
    local answer = note(number, change)
    if type(answer) == "table" and answer.err and number == revision + 1 then
      -- Somebody else wrote to the log, or it is older than its counter: begin a new epoch.
      local top = redis.call("XREVRANGE", log, "+", "-", "COUNT", 1)
      local above = top[1] and tonumber(string.match(top[1][1], "^(%d+)-")) or 0
      epoch, revision, number = math.max(now, above + 1, tonumber(ARGV[5]) + 1), 0, 1
      begins = true
      answer = note(number, change)
    end
    if type(answer) == "table" and answer.err then
      return redis.error_reply(answer.err)
    end
    change.number = number
  end
end

local answers = { "OK", whole(epoch), whole(number) }
for _, change in ipairs(changes) do
  local raw = change.raw
  if change.needed then
    if change.old and (change.kind == "delete" or change.old ~= change.hash) then
      release(change.old)
    end
    if change.kind == "delete" then
      redis.call("HDEL", rows, change.key)
      raw = false
    else
      if change.old ~= change.hash then
        add(references, change.hash, 1)
        redis.call("HSET", contents, change.hash, change.text)
      end
      raw = table.concat({ whole(change.number), change.hash, change.enabled, change.origin,
        change.created or whole(now), whole(now) }, " ")
      redis.call("HSET", rows, change.key, raw)
    end
  elseif change.kind ~= "delete" and change.kind ~= "keep" then
    -- Heals what was taken away behind the table's back.
    redis.call("HSETNX", contents, change.hash, change.text)
  end
  answers[#answers + 1] = raw or ""
  answers[#answers + 1] = (change.needed and 1 or 0)
  answers[#answers + 1] = (change.raw and 0 or 1)
end
for tenant, difference in pairs(added) do
  if difference ~= 0 then
    add(counts, tenant, difference)
  end
end
if number ~= revision then
  redis.call("HSET", meta, "epoch", whole(epoch), "revision", whole(number))
  if begins and blank then
    redis.call("HSET", meta, "begun", "0 0 1 " .. whole(epoch))
  elseif begins then
    -- Its rows are older than it is.
    redis.call("HDEL", meta, "begun")
  end
end
return answers
