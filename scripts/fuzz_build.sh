#!/bin/sh
# Builds every fuzz target. Where the tools are missing, says so and succeeds: fuzzing is no part of a first build.
set -eu
cd "$(dirname "$0")/.."

if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "fuzz_build: skipped, no nightly toolchain (rustup toolchain install nightly)"
    exit 0
fi
if cargo fuzz --version >/dev/null 2>&1; then
    exec cargo +nightly fuzz build "$@"
fi
# Without cargo-fuzz the targets can still be compiled, which is what keeps them from rotting.
echo "fuzz_build: no cargo-fuzz (cargo install cargo-fuzz): compiling the targets without instrumentation"
exec cargo +nightly check --manifest-path fuzz/Cargo.toml --bins --locked
