"""The Lua scripts of the store on Redis: what must be atomic and is more than one command.

A script runs alone on the server, which takes it by its SHA-1 once it knows it. Numbers pass as text, because Lua's have
53 bits and a number in a reply is cut to an integer. The clock is the server's (`TIME`).
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple


class Script(NamedTuple):
    source: str
    sha: str


def _script(source: str) -> Script:
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


# KEYS: those of the checks, then those of the writes. ARGV: number of checks; for each check "=" and the value, or "-"
# and nothing; number of writes; for each write its kind and the value: "d" removes, "s" sets, "k" keeps the time to
# live, "p<milliseconds>" sets one; then channels and messages in turn.
APPLY = _script("""
local at, checks = 2, tonumber(ARGV[1])
for number = 1, checks do
    local value = redis.call('GET', KEYS[number])
    if ARGV[at] == '-' then
        if value then return 0 end
    elseif value ~= ARGV[at + 1] then
        return 0
    end
    at = at + 2
end
local writes = tonumber(ARGV[at])
at = at + 1
for number = 1, writes do
    local key, kind, value = KEYS[checks + number], ARGV[at], ARGV[at + 1]
    if kind == 'd' then
        redis.call('DEL', key)
    elseif kind == 's' then
        redis.call('SET', key, value)
    elseif kind == 'k' then
        redis.call('SET', key, value, 'KEEPTTL')
    else
        redis.call('SET', key, value, 'PX', string.sub(kind, 2))
    end
    at = at + 2
end
while ARGV[at] do
    redis.call('PUBLISH', ARGV[at], ARGV[at + 1])
    at = at + 2
end
return 1
""")

# KEYS: the counter. ARGV: the number to add, and milliseconds to live for a new key. Returns the sum as text.
ADD = _script("""
local is_new = redis.call('EXISTS', KEYS[1]) == 0
redis.call('INCRBY', KEYS[1], ARGV[1])
if is_new then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return redis.call('GET', KEYS[1])
""")

# KEYS: one. Removes the time to live; returns whether the key exists.
PERSIST = _script("""
redis.call('PERSIST', KEYS[1])
return redis.call('EXISTS', KEYS[1])
""")

# ARGV: cursor, pattern, about how many, and "1" for the values. Returns the next cursor, keys and values.
SCAN = _script("""
local page = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3], 'TYPE', 'string')
local values = {}
if ARGV[4] == '1' and #page[2] > 0 then values = redis.call('MGET', unpack(page[2])) end
return {page[1], page[2], values}
""")

# Rates: a request that falls short by less than SLACK, which is rounding, is allowed.
_RATES = """
local SLACK = 1e-9
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local function text(number) return string.format('%.17g', number) end
"""

# KEYS: the bucket, "tokens time". ARGV: capacity, tokens per second, cost. Returns allowed, tokens left and seconds to
# wait. A bucket expires when it is full, which is what a missing one is.
TAKE_TOKENS = _script(
    _RATES
    + """
local capacity, rate, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tokens = capacity
local stored = redis.call('GET', KEYS[1])
if stored then
    local left, at = string.match(stored, '^(%S+) (%S+)$')
    tokens = math.min(capacity, tonumber(left) + math.max(0, now - tonumber(at)) * rate)
end
if cost > tokens + SLACK then
    local wait = 'inf'
    if cost <= capacity then wait = text((cost - tokens) / rate) end
    return {0, text(tokens), wait}
end
tokens = math.max(0, tokens - cost)
local value = text(tokens) .. ' ' .. text(now)
local until_full = math.ceil((capacity - tokens) / rate * 1000) + 1
if until_full < 9e15 then
    redis.call('SET', KEYS[1], value, 'PX', string.format('%d', until_full))
else
    redis.call('SET', KEYS[1], value)
end
return {1, text(tokens), '0'}
"""
)

# KEYS: the window, "number previous current". ARGV: limit, seconds of a window, cost. Returns allowed, requests left and
# seconds to wait.
TAKE_WINDOW = _script(
    _RATES
    + """
local limit, seconds, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local window = math.floor(now / seconds)
local passed = now / seconds - window
local previous, current = 0, 0
local stored = redis.call('GET', KEYS[1])
if stored then
    local number, before, since = string.match(stored, '^(%S+) (%S+) (%S+)$')
    if tonumber(number) == window then
        previous, current = tonumber(before), tonumber(since)
    elseif tonumber(number) == window - 1 then
        previous = tonumber(since)
    end
end
local estimate = previous * (1 - passed) + current
if estimate + cost <= limit + SLACK then
    local value = text(window) .. ' ' .. text(previous) .. ' ' .. text(current + cost)
    redis.call('SET', KEYS[1], value, 'PX', string.format('%d', math.ceil(seconds * 2000) + 1))
    return {1, text(math.max(0, limit - estimate - cost)), '0'}
end
local wait = 'inf'
if cost <= limit then
    local room = limit - cost - current
    if room >= 0 then
        wait = text((1 - room / previous - passed) * seconds)
    else
        wait = text((1 - passed + math.max(0, 1 - (limit - cost) / current)) * seconds)
    end
end
return {0, text(math.max(0, limit - estimate)), wait}
"""
)
