-- What hubs say of themselves, those not heard of any more left out.
-- KEYS: reports, deadlines. Answers: the time, then one text for each.
local time = redis.call("TIME")
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local answers = { string.format("%.0f", now) }
for _, hub in ipairs(redis.call("ZRANGEBYSCORE", KEYS[2], "(" .. now, "+inf")) do
  local text = redis.call("HGET", KEYS[1], hub)
  if text then
    answers[#answers + 1] = text
  end
end
return answers
