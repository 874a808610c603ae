#!/bin/sh
# Builds every fuzz target: instrumented where cargo-fuzz and a nightly toolchain are, as CI does otherwise
# compiled by the ordinary toolchain, which is what keeps the targets from rotting.
set -eu
cd "$(dirname "$0")/.."

if cargo +nightly fuzz --version >/dev/null 2>&1; then
    exec cargo +nightly fuzz build "$@"
fi
echo "fuzz_build: no cargo-fuzz with a nightly toolchain; compiling the targets without instrumentation"
if ! c++ --version >/dev/null 2>&1; then
    echo "fuzz_build: skipped, libFuzzer itself needs a C++ compiler"
    exit 0
fi
exec cargo check --quiet --manifest-path fuzz/Cargo.toml --bins --locked
