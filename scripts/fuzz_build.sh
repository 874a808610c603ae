#!/bin/sh
# Builds every fuzz target: instrumented where cargo-fuzz and a nightly toolchain are, as CI does otherwise
# compiled by the ordinary toolchain, which is what keeps the targets from rotting.
set -eu
cd "$(dirname "$0")/.."

if cargo +nightly fuzz --version >/dev/null 2>&1; then
    exec cargo +nightly fuzz build "$@"
fi
echo "fuzz_build: no cargo-fuzz with a nightly toolchain; compiling the targets without instrumentation"
# Where `make check` has checked their dependencies already; libFuzzer itself, C++, has no part in it.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}"
exec cargo check --quiet --manifest-path fuzz/Cargo.toml --bins --locked --no-default-features
