-- The registry of devices that several hubs share: one call, one atomic step.
--
-- KEYS[1] the device, KEYS[2] ids of all devices, sorted by name
-- ARGV[1] operation, ARGV[2] prefix of addresses, ARGV[3] device id, then what it needs

local key, names = KEYS[1], KEYS[2]
local operation, prefix, device = ARGV[1], ARGV[2], ARGV[3]

local function move(address)
  local before = redis.call('HGET', key, 'address')
  if before and before ~= '' and before ~= address then
    redis.call('SREM', prefix .. before, device)
  end
  if address ~= '' then
    redis.call('SADD', prefix .. address, device)
  end
end

if operation == 'save' then
  local address, session, may_make = ARGV[4], ARGV[5], ARGV[6] == '1'
  if not may_make and redis.call('EXISTS', key) == 0 then
    return 0
  end
  move(address)
  redis.call('HSET', key, 'address', address, 'session', session)
  redis.call('ZADD', names, 0, device)
  return 1
elseif operation == 'put' then
  redis.call('HSET', key, 'profile', ARGV[4])
  redis.call('ZADD', names, 0, device)
  return 1
end
-- 'remove'
move('')
redis.call('ZREM', names, device)
return redis.call('DEL', key)
