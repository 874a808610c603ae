#!/usr/bin/env bash
# `make run`: builds, serves examples/hello and shows its responses, installs the peers, compares with them.
#
#   scripts/run.sh MAKE [ARGUMENTS of towline bench quick]
#
# While the compiler runs, the peers are downloaded with the processor time that it leaves over; they are installed when
# it is done, because maturin installs into the same environment.
set -euo pipefail
cd "$(dirname "$0")/.."
make=$1
shift

venv=.venv
began=$SECONDS
say() { printf '\033[1m== [%d:%02d] %s\033[0m\n' $(((SECONDS - began) / 60)) $(((SECONDS - began) % 60)) "$1"; }
run_make() { "$make" --no-print-directory "$@"; }

is_first=
if ! run_make --question "$venv/.stamp-release" "$venv/.stamp-peers" "$venv/.stamp-client-peers" 2>/dev/null; then
    is_first=1
    say "1 of 4: build tools and the release build; the first time, all four steps take about six minutes on two cores"
fi
run_make "$venv/.stamp-tools"

download() {
    pip=("$venv/bin/python" -m pip --quiet --disable-pip-version-check download --only-binary :all: --dest "$venv/wheels")
    nice -n 19 "${pip[@]}" --group peers
    # shellcheck disable=SC2046
    nice -n 19 "${pip[@]}" $("$venv/bin/python" scripts/group.py client-peers)
}
downloading=
if [ ! -e "$venv/.stamp-peers" ] || [ ! -e "$venv/.stamp-client-peers" ]; then
    download >/dev/null 2>&1 &
    downloading=$!
    trap 'kill "$downloading" 2>/dev/null || true' EXIT
fi
run_make "$venv/.stamp-release"

if [ -n "$is_first" ]; then
    say "2 of 4: a real application, and its responses"
    "$venv/bin/python" scripts/run_hello.py --brief
    say "3 of 4: the servers and clients to compare with (about half a minute)"
fi
if [ -n "$downloading" ]; then
    wait "$downloading" || true # what is missing is downloaded by the installation
    trap - EXIT
fi
run_make "$venv/.stamp-peers" "$venv/.stamp-client-peers"
rm -rf "$venv/wheels"

[ -z "$is_first" ] || say "4 of 4: towline bench quick (about two minutes)"
exec "$venv/bin/towline" bench quick "$@"
