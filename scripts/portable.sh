#!/usr/bin/env bash
# Tests what runs on systems other than Linux, on Linux: the build takes the paths of every `not(target_os = "linux")`, mio wakes its
# poll by a pipe, and LMDB locks with semaphores of System V, as on macOS. Usage: portable.sh [PYTEST ARGUMENTS]
#
# mio's poll remains epoll, in the place of kqueue: the one by poll(2) has no descriptor for an event loop.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=$PWD/.venv/bin/python
target=$PWD/target/portable
export CARGO_TARGET_DIR=$target PYO3_PYTHON=$PYTHON
export RUSTFLAGS="--cfg towline_portable --cfg mio_unsupported_force_waker_pipe" CFLAGS=-DMDB_USE_SYSV_SEM

if [ -z "${PORTABLE_WITHOUT_RUST:-}" ]; then
    "$PYTHON" scripts/run_rust_tests.py --quiet --locked --package towline-io --package towline-state --profile quick \
        --config scripts/rust_tests.toml
fi
cargo build --quiet --locked --package towline-py --profile quick

# A copy of the package, with this build, before the one that is installed.
rm -rf "$target/site"
mkdir -p "$target/site"
cp -R python/towline "$target/site/"
rm -f "$target"/site/towline/_native.*.so
cp "$target/quick/libtowline_native.so" "$target/site/towline/_native.so"
export PYTHONPATH=$target/site
"$PYTHON" -c 'import towline._native as native; assert "portable" in native.__file__, native.__file__'

if [ $# -eq 0 ]; then
    set -- tests/client tests/server tests/lifecycle tests/state
fi
exec "$PYTHON" -m pytest -n "${PYTEST_WORKERS:-4}" --dist loadfile "$@"
