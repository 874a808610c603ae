#!/bin/sh
# scripts/fuzz_all.sh [SECONDS]: fuzzes each target for that time (default: 60), one after the other. Status 1: a finding.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
findings=
for path in fuzz/fuzz_targets/*.rs; do
    target=$(basename "$path" .rs)
    echo "== $target"
    scripts/fuzz.sh "$target" "$seconds" || findings="$findings $target"
done
[ -z "$findings" ] || { echo "fuzz: findings in$findings; see fuzz/artifacts" >&2; exit 1; }
