#!/bin/sh
# Checks the crates with cargo-deny: licences, sources, bans (deny.toml) and known advisories. Installs cargo-deny if needed.
#
#   AUDIT="licenses sources bans"   without advisories, whose database comes from the network
set -eu
cd "$(dirname "$0")/.."
cargo deny --version >/dev/null 2>&1 || cargo install --quiet --locked cargo-deny@0.20.2
for manifest in Cargo.toml fuzz/Cargo.toml; do
    # shellcheck disable=SC2086
    cargo deny --manifest-path "$manifest" --locked --config deny.toml check ${AUDIT:-advisories licenses sources bans}
done
