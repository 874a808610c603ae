-- wrk's side of a cell: arguments are method, body bytes and pipeline depth; the result is one JSON line.

function init(args)
  wrk.method = args[1] or "GET"
  local body_bytes = tonumber(args[2] or "0")
  if body_bytes > 0 then
    wrk.body = string.rep("x", body_bytes)
  end
  local depth = tonumber(args[3] or "1")
  -- Without a function of our own wrk formats the request once and never enters Lua again.
  if depth > 1 then
    local batch = string.rep(wrk.format(), depth)
    request = function() return batch end
  end
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\nresult {"requests": %d, "duration_us": %d, "bytes": %d, "p50_us": %d, "p99_us": %d, "max_us": %d, ' ..
    '"connect": %d, "read": %d, "write": %d, "timeout": %d, "status": %d}\n',
    summary.requests, summary.duration, summary.bytes, latency:percentile(50), latency:percentile(99),
    latency.max, e.connect, e.read, e.write, e.timeout, e.status))
end
