#!/usr/bin/env bash
# `make run`: builds, serves examples/hello and shows its responses, compares with the peers.
#
#   scripts/run.sh MAKE [ARGUMENTS of towline bench quick]
#
# The comparison needs Linux. Elsewhere the responses are the end.
#
# The peers are installed with the processor time that the compiler leaves over: the responses do not wait for them.
set -euo pipefail
cd "$(dirname "$0")/.."
make=$1
shift

venv=.venv
peers=$venv/.stamp-peers
began=$SECONDS
say() { printf '\033[1m== [%d:%02d] %s\033[0m\n' $(((SECONDS - began) / 60)) $(((SECONDS - began) % 60)) "$1"; }
run_make() { "$make" --no-print-directory "$@"; }

if [ "$(uname)" != Linux ]; then
    run_make "$venv/.stamp-run"
    "$venv/bin/python" scripts/run_hello.py --brief
    say "done: \`towline bench\`, the comparison with the peers, needs Linux"
    exit
fi

is_first=
if ! run_make --question "$venv/.stamp-run" "$peers" 2>/dev/null; then
    is_first=1
    say "1 of 4: the build; the first time, on two cores, an application responds after about three minutes"
fi

# pip and cargo download at the same time.
cargo fetch --quiet --locked 2>/dev/null &
fetching=$!
run_make "$venv/.stamp-tools"
wait "$fetching" || true # what is missing is downloaded by the build

installing=
log=$(mktemp)
set -m # a process group of its own, which ends with this script
nice -n 19 "$make" --no-print-directory "$peers" >"$log" 2>&1 &
installing=$!
set +m
trap 'kill -- "-$installing" 2>/dev/null || true; rm -f "$log"' EXIT
run_make "$venv/.stamp-run"

if [ -n "$is_first" ]; then
    say "2 of 4: a real application, and its responses"
    "$venv/bin/python" scripts/run_hello.py --brief
    say "3 of 4: the servers and clients to compare with"
fi
wait "$installing" || true
cat "$log"
run_make "$peers"
trap - EXIT
rm -f "$log"

[ -z "$is_first" ] || say "4 of 4: towline bench quick (about two minutes)"
exec "$venv/bin/towline" bench quick "$@"
