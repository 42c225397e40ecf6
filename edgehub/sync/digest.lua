-- A piece of the sum over all rows; see `Digest` in storage.py.
-- KEYS: rows; ARGV: cursor, rows to look at. Answers: next cursor, count, high, low.
local page = redis.call("HSCAN", KEYS[1], ARGV[1], "COUNT", ARGV[2])
local count, high, low = 0, 0, 0
for at = 1, #page[2], 2 do
  local mark = redis.sha1hex(page[2][at] .. "\n" .. page[2][at + 1])
  count = count + 1
  high = high + tonumber(string.sub(mark, 1, 8), 16)
  low = low + tonumber(string.sub(mark, 9, 16), 16)
end
return { page[1], count, string.format("%.0f", high), string.format("%.0f", low) }
