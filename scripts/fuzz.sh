#!/bin/sh
# scripts/fuzz.sh TARGET [SECONDS]: fuzzes from the corpora and conformance cases of the project.
set -eu
cd "$(dirname "$0")/.."
target=${1:?usage: scripts/fuzz.sh TARGET [SECONDS]}
seconds=${2:-600}

seeds=fuzz/corpus/$target
mkdir -p "$seeds"
python3 scripts/fuzz_seeds.py "$target" "$seeds"
# Without seeds libFuzzer begins with inputs of a few bytes, which are a few operations.
set --
[ -n "$(ls "$seeds")" ] || set -- -len_control=0
exec cargo +nightly fuzz run "$target" "$seeds" -- "$@" \
    -max_total_time="$seconds" -max_len=4096 -timeout=20 -rss_limit_mb=2048 -dict=fuzz/http1.dict -print_final_stats=1
