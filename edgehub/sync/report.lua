-- What one hub says of itself, with the moment at which that is forgotten, by the server's clock.
-- KEYS: reports, deadlines; ARGV: hub, milliseconds until then or "" to take it back, text.
-- Answers: what it said before, or false.
local time = redis.call("TIME")
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local expired = redis.call("ZRANGEBYSCORE", KEYS[2], "-inf", now)
for _, hub in ipairs(expired) do
  redis.call("HDEL", KEYS[1], hub)
  redis.call("ZREM", KEYS[2], hub)
end
local before = redis.call("HGET", KEYS[1], ARGV[1])
if ARGV[2] == "" then
  redis.call("HDEL", KEYS[1], ARGV[1])
  redis.call("ZREM", KEYS[2], ARGV[1])
else
  redis.call("HSET", KEYS[1], ARGV[1], string.format("%.0f ", now) .. ARGV[3])
  redis.call("ZADD", KEYS[2], now + tonumber(ARGV[2]), ARGV[1])
end
return before
