-- The rule of claim.rs, over the keys of one lock. Keys and texts are described in script.rs.
--
-- KEYS: the key itself, queue, waiters, holders, token, gone, log, and the wake list of the claim in ARGV[2].
-- ARGV: the operation, the claim, its ttl_ms; then
--   ask:    limit, process (0 or 1), record, wait (0 or 1)
--   renew:  limit, process, record, number (empty: none)
--   finish: left_ms
--   drop, condemn: nothing
-- The answer is a word, the server's time in milliseconds, and what belongs to the word.
--
-- What is decided here goes by the times written in the entries. Redis' own ends of keys are set to match: they are
-- what other programs see, and what clears up when nobody comes any more.

local KEY, QUEUE, WAITERS, HOLDERS, TOKEN, GONE, LOG, WAKE = unpack(KEYS)
local HEARTBEAT, WINDOW, TOMBSTONE, WEEK = 10000, 3000, 60000, 604800000
local MARKER = '{"rlock":1,"holders":"aside"}'
local LONGEST_VALUE, MOST_SHOWN = 4096, 8
local GREATEST = 9007199254740991
local ENTRY = '^{"rlock":1,"id":"(%x+)","limit":(%d+),"process":([01]),"token":(%d+),'
  .. '"since_ms":(%d+),"until_ms":(%d+),"ttl_ms":(%d+)(.*)}$'

-- First a write that needs no memory: then Redis lets the rest pass when memory is out, and a replica says READONLY.
redis.call('PEXPIRE', QUEUE, HEARTBEAT)
local clock = redis.call('TIME')
local now_us = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local now = math.floor(now_us / 1000)

local id, ttl = ARGV[2], tonumber(ARGV[3])

local function int(n)
  return string.format('%.0f', n)
end

-- `tail` is the record with its leading comma, or empty. It is passed through unread.
local function parse(text)
  local who, limit, process, token, since, ends, lease, tail = string.match(text, ENTRY)
  if not who or #who ~= 32 or who ~= string.lower(who) or (tail ~= '' and string.sub(tail, 1, 1) ~= ',') then
    return nil
  end
  local e = {
    id = who, limit = tonumber(limit), process = process == '1', token = tonumber(token),
    since = tonumber(since), ends = tonumber(ends), ttl = tonumber(lease), tail = tail,
  }
  local greatest = math.max(e.token, e.since, e.ends, e.ttl)
  return e.limit < 4294967296 and greatest <= GREATEST and e or nil
end

local function text(e)
  return string.format(
    '{"rlock":1,"id":"%s","limit":%.0f,"process":%d,"token":%.0f,"since_ms":%.0f,"until_ms":%.0f,"ttl_ms":%.0f',
    e.id, e.limit, e.process and 1 or 0, e.token, e.since, e.ends, e.ttl
  ) .. e.tail .. '}'
end

-- What holds the key. `foreign`: something that is not rlock's, or that cannot be read: never touched.
-- `marked`: the holders stand in the side hash.
local holders, foreign, marked, changed = {}, false, false, false
local number = tonumber(redis.call('GET', TOKEN) or 0) or 0
-- One that no rlock has written. The clock stands in for it.
if not (number >= 0 and number < GREATEST) then
  number = 0
end

local function load()
  local kind = redis.call('TYPE', KEY).ok
  if kind == 'none' then
    return
  end
  if kind ~= 'string' or redis.call('STRLEN', KEY) > LONGEST_VALUE then
    foreign = true
    return
  end
  local value = redis.call('GET', KEY)
  marked = value == MARKER
  local texts = marked and redis.call('HVALS', HOLDERS) or { value }
  -- A marker that has lost its hash holds until its end.
  foreign = #texts == 0
  for i, one in ipairs(texts) do
    holders[i] = parse(one)
    if not holders[i] then
      holders, foreign, marked = {}, true, false
      return
    end
  end
end

local function save()
  if not changed then
    return
  end
  if #holders == 0 then
    redis.call('DEL', KEY, HOLDERS)
    return
  end
  local last = 0
  for _, e in ipairs(holders) do
    last = math.max(last, e.ends)
  end
  if #holders == 1 and holders[1].limit == 1 then
    redis.call('SET', KEY, text(holders[1]))
    redis.call('DEL', HOLDERS)
  else
    if not marked then
      redis.call('DEL', HOLDERS)
      redis.call('SET', KEY, MARKER)
    end
    for _, e in ipairs(holders) do
      if e.changed or not marked then
        redis.call('HSET', HOLDERS, e.id, text(e))
      end
    end
    redis.call('PEXPIREAT', HOLDERS, int(last))
  end
  redis.call('PEXPIREAT', KEY, int(last))
end

-- The number outlives the lock by a week. Locks are listed by this key, so it stands while any claim does.
local function keep_number(given)
  if given then
    number = given
  end
  if given or redis.call('PEXPIRE', TOKEN, WEEK) == 0 then
    redis.call('SET', TOKEN, int(number), 'PX', WEEK)
  end
end

-- Log and wake-ups are best effort: a refused one undoes and blocks nothing.
local function log(event, e, field, ms)
  redis.pcall('XADD', LOG, 'MAXLEN', 64, '*', 'event', event, 'id', e.id, 'limit', int(e.limit),
    'token', int(e.token), field, int(math.max(ms, 0)), 'record', string.sub(e.tail, 2))
  redis.pcall('PEXPIRE', LOG, WEEK)
end

local function wake(who, why)
  local prefix = KEY .. ':rlock1:wake:'
  local list = prefix .. who .. string.sub(WAKE, #prefix + 33)
  redis.pcall('RPUSH', list, why)
  redis.pcall('PEXPIRE', list, WINDOW)
end

local function find(who)
  for at, e in ipairs(holders) do
    if e.id == who then
      return e, at
    end
  end
end

local function touch(e)
  e.changed, changed = true, true
end

local function leave(at)
  if marked then
    redis.call('HDEL', HOLDERS, holders[at].id)
  end
  changed = true
  return table.remove(holders, at)
end

local function waiter(who)
  return parse(redis.call('HGET', WAITERS, who) or '')
end

local function unqueue(who)
  redis.call('ZREM', QUEUE, who)
  redis.call('HDEL', WAITERS, who)
end

local function beat(e)
  e.ends = now + HEARTBEAT
  redis.call('HSET', WAITERS, e.id, text(e))
  redis.call('PEXPIREAT', WAITERS, int(e.ends))
  redis.call('PEXPIREAT', QUEUE, int(e.ends))
end

local function trace(who)
  if redis.call('ZSCORE', GONE, who) then
    return 'dropped'
  end
  return redis.call('ZSCORE', GONE, 'c:' .. who) and 'condemned' or nil
end

-- A tombstone outranks a condemned mark and is never taken back; neither is ever shortened.
local function mark(who, ends, condemned)
  local tombstone, doomed = redis.call('ZSCORE', GONE, who), redis.call('ZSCORE', GONE, 'c:' .. who)
  ends = math.max(ends, tonumber(tombstone or 0), tonumber(doomed or 0))
  if condemned and not tombstone then
    redis.call('ZADD', GONE, int(ends), 'c:' .. who)
  else
    redis.call('ZREM', GONE, 'c:' .. who)
    redis.call('ZADD', GONE, int(ends), who)
  end
  local last = redis.call('ZREVRANGE', GONE, 0, 0, 'WITHSCORES')[2]
  redis.call('PEXPIREAT', GONE, int(math.min(tonumber(last), GREATEST)))
end

local function may_hold(limit)
  local together = #holders + 1
  if foreign or (limit ~= 0 and together > limit) then
    return false
  end
  for _, e in ipairs(holders) do
    if e.limit ~= 0 and together > e.limit then
      return false
    end
  end
  return true
end

local function grant(e, lease)
  keep_number(e.limit == 1 and math.max(number + 1, now_us) or nil)
  e.token = number
  log('acquired', e, 'waited_ms', now - e.since)
  e.since, e.ends = now, now + lease
  holders[#holders + 1] = e
  touch(e)
end

local function serve()
  redis.call('ZREMRANGEBYSCORE', GONE, '-inf', int(now))
  local at = 1
  while holders[at] do
    if holders[at].ends > now then
      at = at + 1
    else
      local e = leave(at)
      -- Whoever has said its last word was logged then.
      if trace(e.id) ~= 'dropped' then
        log('lost', e, 'held_ms', e.ends - e.since)
      end
    end
  end
  while true do
    local who = redis.call('ZRANGE', QUEUE, 0, 0)[1]
    local head = who and waiter(who)
    if not who then
      redis.call('DEL', WAITERS)
      return
    elseif not head or head.ends <= now then
      unqueue(who)
    elseif may_hold(head.limit) then
      unqueue(who)
      grant(head, math.min(head.ttl, WINDOW))
      wake(who, 'granted')
    else
      return
    end
  end
end

local function remove()
  local ends, reply = now + ttl, { 'unknown', now }
  local held, at = find(id)
  if held then
    leave(at)
    ends = math.max(ends, held.ends)
    log('released', held, 'held_ms', now - held.since)
    reply = { 'held', now, text(held) }
  elseif redis.call('ZSCORE', QUEUE, id) then
    local waited = waiter(id)
    reply = waited and { 'waited', now, text(waited) } or reply
    unqueue(id)
  end
  mark(id, ends + TOMBSTONE, false)
  return reply
end

local function with_holders(reply)
  table.sort(holders, function(a, b)
    return a.since < b.since or (a.since == b.since and a.id < b.id)
  end)
  for at = 1, math.min(#holders, MOST_SHOWN) do
    reply[#reply + 1] = text(holders[at])
  end
  return reply
end

local function lapse()
  if foreign then
    return math.max(redis.call('PTTL', KEY), -1)
  end
  local first = holders[1].ends
  for _, e in ipairs(holders) do
    first = math.min(first, e.ends)
  end
  return first - now
end

local function new_entry()
  local record = ARGV[6]
  return {
    id = id, limit = tonumber(ARGV[4]), process = ARGV[5] == '1', token = 0,
    since = now, ends = now, ttl = ttl, tail = record == '' and '' or ',' .. record,
  }
end

local operations = {}

function operations.ask()
  if trace(id) then
    return { 'gone', now }
  end
  local held = find(id)
  if held then
    held.ends, held.ttl = math.max(held.ends, now + ttl), ttl
    touch(held)
    keep_number()
    return { 'granted', now, int(held.token), held.ends - now }
  end
  local place, entry = redis.call('ZRANK', QUEUE, id), new_entry()
  if not place and redis.call('ZCARD', QUEUE) == 0 and may_hold(entry.limit) then
    grant(entry, ttl)
    return { 'granted', now, int(entry.token), ttl }
  end
  if ARGV[7] ~= '1' then
    if place then
      unqueue(id)
      serve()
    end
    return with_holders({ 'busy', now })
  end
  keep_number()
  if place then
    beat(waiter(id) or entry)
  else
    -- A wake-up of an earlier place says nothing about this one.
    redis.call('DEL', WAKE)
    local last = redis.call('ZREVRANGE', QUEUE, 0, 0, 'WITHSCORES')[2]
    redis.call('ZADD', QUEUE, int(tonumber(last or 0) + 1), id)
    beat(entry)
    place = redis.call('ZRANK', QUEUE, id)
  end
  return with_holders({ 'waiting', now, place + 1, lapse() })
end

function operations.renew()
  local seen = trace(id)
  if seen then
    return { seen == 'condemned' and 'condemned' or 'gone', now }
  end
  local held = find(id)
  if held then
    held.ends = math.max(held.ends, now + ttl)
    held.process = held.process or ARGV[5] == '1'
    touch(held)
    keep_number()
    return { 'renewed', now, held.ends - now, 0 }
  end
  local entry, given = new_entry(), tonumber(ARGV[7])
  if not given or given < number or redis.call('ZCARD', QUEUE) > 0 or not may_hold(entry.limit) then
    return { 'gone', now }
  end
  keep_number(given)
  entry.token, entry.ends = given, now + ttl
  log('restored', entry, 'held_ms', 0)
  holders[#holders + 1] = entry
  touch(entry)
  return { 'renewed', now, ttl, 1 }
end

function operations.drop()
  -- A grant's call may have come while nobody listened. One that tells of a condemnation is still to be heard.
  if trace(id) ~= 'condemned' then
    redis.call('DEL', WAKE)
  end
  local reply = remove()
  serve()
  return reply
end

function operations.finish()
  local seen, held = trace(id), find(id)
  if not held or seen == 'condemned' then
    remove()
    serve()
    return { seen == 'condemned' and 'condemned' or 'gone', now }
  end
  local ends = now + tonumber(ARGV[4])
  if seen then
    -- Said before: its answer was lost, or this one is late.
    ends = math.min(ends, held.ends)
  else
    log('released', held, 'held_ms', ends - held.since)
  end
  mark(id, math.max(held.ends, ends) + TOMBSTONE, false)
  held.ends, held.process = ends, false
  touch(held)
  serve()
  return { 'renewed', now, ends - now, 0 }
end

function operations.condemn()
  local held, reply = find(id), nil
  if held and held.process then
    reply = { 'marked', now, held.ends - now }
    mark(id, held.ends + TOMBSTONE, true)
    log('condemned', held, 'held_ms', now - held.since)
    wake(id, 'condemned')
  elseif held or redis.call('ZSCORE', QUEUE, id) then
    remove()
    reply = { 'dropped', now }
  else
    mark(id, now + ttl + TOMBSTONE, true)
    reply = { 'unknown', now }
  end
  serve()
  return reply
end

load()
serve()
local reply = operations[ARGV[1]]()
save()
return reply
