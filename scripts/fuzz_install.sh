#!/bin/sh
# Installs what fuzzing needs: a nightly toolchain and cargo-fuzz.
set -eu
rustup toolchain install nightly --profile minimal
cargo +nightly fuzz --version 2>/dev/null || cargo install --quiet --locked cargo-fuzz@0.13.2
