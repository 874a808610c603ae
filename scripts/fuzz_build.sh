#!/bin/sh
# Builds every fuzz target: instrumented where cargo-fuzz and a nightly toolchain are installed, otherwise, as in CI,
# with the ordinary toolchain, so that a change that breaks a target is seen.
set -eu
cd "$(dirname "$0")/.."

if cargo +nightly fuzz --version >/dev/null 2>&1; then
    exec cargo +nightly fuzz build "$@"
fi
echo "fuzz_build: no cargo-fuzz with a nightly toolchain; compiling the targets without instrumentation"
# `make check` has checked their dependencies there already. libFuzzer itself (C++) is not needed.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}"
exec cargo check --quiet --profile quick --manifest-path fuzz/Cargo.toml --bins --locked --no-default-features
