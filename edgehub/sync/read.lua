-- Rows with their contents, each pair as of one moment.
-- KEYS: rows, contents; ARGV: keys. Answers: row or false, content or false for each.
local answers = {}
for _, key in ipairs(ARGV) do
  local raw = redis.call("HGET", KEYS[1], key)
  local hash = raw and string.match(raw, "^%d+ (%x+) ")
  answers[#answers + 1] = raw
  answers[#answers + 1] = hash and redis.call("HGET", KEYS[2], hash) or false
end
return answers
