-- The coordinator of several hubs: one call, one atomic step. See coordinator.py for the rule.
--
-- KEYS[1] the fleet: hash of incarnation, epoch, and the number of notices per hub
-- KEYS[2] what the call is about: a device's record, or a claimed join; of 'stored' also further ones
-- ARGV[1] operation, ARGV[2] prefix of all keys, ARGV[3] name for a memory that begins now
--
-- Numbers are 32-bit counters and milliseconds, which Lua's floating point holds exactly; they
-- are written out whole, because its own text of a large number is not.

local fleet, subject = KEYS[1], KEYS[2]
local operation, prefix, fresh = ARGV[1], ARGV[2], ARGV[3]

local F_CNT_MAX = 4294967295
local TIME_MAX = 999999999999999
local FIRST_RESTART_COUNTER = 1
local RESTART_PAUSE_MS = 60000
local RECORD_S = 2592000
local CLAIM_S = 300
local PROCESS_S = 300
local NOTICES_MAX = 10000
local TAKE_OVER_MS = 10000
local OPEN_MAX = 8

local function whole(number)
  return string.format('%.0f', number)
end

-- Nothing for a counter or a time that no hub wrote.
local function number(text, most)
  local value = text and #text <= 15 and string.match(text, '^%d+$') and tonumber(text) or nil
  return value and value <= most and value or nil
end

local function now_ms()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

-- A memory that was lost is known by another name. Its epochs begin at the time of day, so they
-- are higher than those that hubs remember from before.
if redis.call('HSETNX', fleet, 'incarnation', fresh) == 1 then
  redis.call('HSET', fleet, 'epoch', whole(now_ms()))
end

local function next_epoch()
  return redis.call('HINCRBY', fleet, 'epoch', 1)
end

local function tell(hub, device, epoch, owner)
  local number = redis.call('HINCRBY', fleet, 'notices:' .. hub, 1)
  local incarnation = redis.call('HGET', fleet, 'incarnation')
  local stream = prefix .. 'notices:' .. incarnation .. ':' .. hub
  redis.call('XADD', stream, 'MAXLEN', NOTICES_MAX, whole(number) .. '-1',
    'device', device, 'epoch', whole(epoch), 'owner', owner)
  redis.call('EXPIRE', stream, RECORD_S)
end

local function read()
  local found = redis.call('HMGET', subject, 'owner', 'f_cnt', 'epoch', 'generation', 'f_cnt_down',
    'begun_ms')
  local epoch, generation = number(found[3], TIME_MAX), number(found[4], TIME_MAX)
  local f_cnt_down = number(found[5], F_CNT_MAX)
  if not (found[1] and epoch and generation and f_cnt_down) then
    return nil
  end
  return {
    owner = found[1],
    f_cnt = number(found[2], F_CNT_MAX),
    epoch = epoch,
    generation = generation,
    f_cnt_down = f_cnt_down,
    begun_ms = number(found[6], TIME_MAX),
  }
end

local function write(record)
  redis.call('HSET', subject, 'owner', record.owner,
    'f_cnt', record.f_cnt and whole(record.f_cnt) or '', 'epoch', whole(record.epoch),
    'generation', whole(record.generation), 'f_cnt_down', whole(record.f_cnt_down),
    'begun_ms', record.begun_ms and whole(record.begun_ms) or '')
  redis.call('EXPIRE', subject, RECORD_S)
end

local function clear(record, generation)
  record.f_cnt, record.generation, record.f_cnt_down = nil, generation, 0
end

local function grant(record, f_cnt_down)
  local granted = math.max(record.f_cnt_down, f_cnt_down) + 1
  if granted > F_CNT_MAX then
    return ''
  end
  record.f_cnt_down = granted
  return whole(granted)
end

-- Frames that are not known to be stored: a list of generation, counter, hub and since when.
local function read_open()
  local text = redis.call('HGET', subject, 'open')
  return text and text ~= '' and cjson.decode(text) or {}
end

local function write_open(open)
  redis.call('HSET', subject, 'open', #open > 0 and cjson.encode(open) or '')
end

local function find(open, generation, f_cnt)
  for number, frame in ipairs(open) do
    if frame.generation == generation and frame.f_cnt == f_cnt then
      return number, frame
    end
  end
end

local function begin(hub, generation, f_cnt)
  local open = read_open()
  local number = find(open, generation, f_cnt)
  if number or #open >= OPEN_MAX then
    table.remove(open, number or 1)
  end
  table.insert(open, { generation = generation, f_cnt = f_cnt, hub = hub, ms = now_ms() })
  write_open(open)
end

local function give(record, device, hub)
  if record.owner == hub then
    return ''
  end
  local former = record.owner
  record.owner, record.epoch = hub, next_epoch()
  tell(former, device, record.epoch, hub)
  return former
end

local function elect()
  local device, hub, f_cnt = ARGV[4], ARGV[5], tonumber(ARGV[6])
  local generation, restarted = tonumber(ARGV[7]), ARGV[8] == '1'
  local record, won, former, opens = read(), false, '', false
  if not record then
    won, opens = true, true
    record = { owner = hub, f_cnt = f_cnt, epoch = next_epoch(), generation = generation,
      f_cnt_down = 0 }
  elseif generation >= record.generation then
    if generation > record.generation
        or (restarted and (record.f_cnt or 0) > FIRST_RESTART_COUNTER
          and (record.owner == hub or not record.begun_ms
            or now_ms() - record.begun_ms >= RESTART_PAUSE_MS)) then
      clear(record, generation)
    end
    if not record.f_cnt or f_cnt > record.f_cnt then
      won, opens, record.f_cnt = true, true, f_cnt
      former = give(record, device, hub)
    else
      won = f_cnt == record.f_cnt and record.owner == hub
    end
  end
  if won and f_cnt <= FIRST_RESTART_COUNTER and record.f_cnt == f_cnt then
    record.begun_ms = now_ms()
  end
  write(record)
  if opens then
    begin(hub, generation, f_cnt)
  end
  local _, opened = nil, nil
  if not won then
    _, opened = find(read_open(), generation, f_cnt)
  end
  return { won and 1 or 0, record.owner, whole(record.epoch), former,
    opened and opened.hub ~= hub and 1 or 0 }
end

local function take_over()
  local device, hub, f_cnt, generation = ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
  local record, open = read(), read_open()
  local _, opened = find(open, generation, f_cnt)
  if not record or not opened then
    return { 0, record and record.owner or '', whole(record and record.epoch or 0), '', 0 }
  end
  local won, former = now_ms() - opened.ms >= TAKE_OVER_MS, ''
  if won then
    opened.hub, opened.ms = hub, now_ms()
    write_open(open)
    if record.generation == generation and record.f_cnt == f_cnt then
      former = give(record, device, hub)
      write(record)
    end
  end
  return { won and 1 or 0, record.owner, whole(record.epoch), former, won and 0 or 1 }
end

local function record_stored()
  local hub = ARGV[4]
  for key = 2, #KEYS do
    subject = KEYS[key]
    local open = read_open()
    local at = 1 + 2 * key
    local number, opened = find(open, tonumber(ARGV[at]), tonumber(ARGV[at + 1]))
    if opened and opened.hub == hub then
      table.remove(open, number)
      write_open(open)
    end
  end
  return 1
end

local function finish_join()
  local device, generation = ARGV[4], tonumber(ARGV[5])
  local record = read()
  if record then
    clear(record, generation)
    write(record)
  end
  return record and 1 or 0
end

local function grant_downlink()
  local hub, generation, known = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
  local record = read()
  if not record or record.owner ~= hub or record.generation ~= generation then
    return ''
  end
  local granted = grant(record, known)
  write(record)
  return granted
end

if operation == 'elect' then
  return elect()
elseif operation == 'take_over' then
  return take_over()
elseif operation == 'stored' then
  return record_stored()
elseif operation == 'claim' then
  return redis.call('SET', subject, ARGV[4], 'NX', 'EX', CLAIM_S) and 1 or 0
elseif operation == 'unclaim' then
  return redis.call('GET', subject) == ARGV[4] and redis.call('DEL', subject) or 0
elseif operation == 'finish' then
  return finish_join()
elseif operation == 'grant' then
  return grant_downlink()
elseif operation == 'owner' then
  return redis.call('HGET', subject, 'owner') or ''
end
-- 'look': where a hub's stream stands, and which process looked last under its name.
local process = prefix .. 'process:' .. ARGV[4]
local before = redis.call('GET', process) or ''
redis.call('SET', process, ARGV[5], 'EX', PROCESS_S)
return { redis.call('HGET', fleet, 'incarnation'),
  redis.call('HGET', fleet, 'notices:' .. ARGV[4]) or '0', before }
