#!/usr/bin/env bash
# scripts/free_threaded.sh [PYTEST_ARGS...]: builds the extension for a free-threaded CPython and runs tests with it, without the GIL.
# Without arguments: the tests of client, server (WebSocket and HTTP/2 are there), life cycle, HTTP/3, state and free_threading.
#
# The interpreter is Debian's source package python3.13 (trixie), compiled once with --disable-gil (some six minutes on two cores).
# It stays in a cache folder for all checkouts. The extension has a target folder of its own, target/free-threaded, and an environment
# of its own, .venv-3.13t. PyO3 supports free-threaded interpreters from 3.14 on, so its check is skipped: this build is for tests
# alone. Packages of the tests that have no wheel for this interpreter are left out.
#
#   FREE_THREADED_ROOT   the cache folder (default: ~/.cache/towline/free-threaded)
#   DEBIAN_MIRROR        (default: http://deb.debian.org/debian)
#   PYTEST_WORKERS       test files at once (default: 4)
#   PROFILE              of the build (default: quick)
#   ONLY=interpreter|build   stops after that step
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p "${FREE_THREADED_ROOT:-$HOME/.cache/towline/free-threaded}"
root=$(realpath "${FREE_THREADED_ROOT:-$HOME/.cache/towline/free-threaded}")
say() { printf '\033[1m== %s\033[0m\n' "$1"; }

interpreter() {
    [ ! -e "$root/done" ] || return 0
    say "the interpreter"
    mkdir -p "$root/lists/partial" "$root/sources" "$root/build"
    echo "deb-src ${DEBIAN_MIRROR:-http://deb.debian.org/debian} trixie main" >"$root/sources.list"
    settings=(-qq -o "Dir::Etc::sourcelist=$root/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$root/lists"
        -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root)
    apt-get "${settings[@]}" update
    (cd "$root/sources" && apt-get "${settings[@]}" source --download-only python3.13)
    tar --extract --file "$(ls "$root"/sources/python3.13_*.orig.tar.xz)" --directory "$root/build" --strip-components 1
    (
        cd "$root/build"
        ./configure --disable-gil --prefix="$root" >log
        make -j "$(nproc)" >>log 2>&1
        make install >>log 2>&1
    )
    rm -rf "$root/build"
    touch "$root/done"
}
# Other checkouts may want the same interpreter at the same time.
(
    flock 9
    interpreter
) 9>"$root/lock"
[ "${ONLY:-}" != interpreter ] || exit 0

# cffi and cryptography refuse this interpreter, in a line of setup.py and by PyO3's check, but work as far as the tests need them.
certificates() {
    local sources=$root/sources/cffi
    rm -rf "$sources"
    mkdir -p "$sources"
    "${PYTHON:-python3}" -m pip download --quiet --no-deps --no-binary :all: --dest "$sources" cffi || return
    tar --extract --file "$(ls "$sources"/cffi-*.tar.gz)" --directory "$sources" --strip-components 1 || return
    sed --in-place 's/raise RuntimeError("CFFI does not support/print("CFFI does not support/' "$sources/setup.py"
    "$python" -m pip install --quiet setuptools "$sources" || return
    PATH=$venv/bin:$PATH UNSAFE_PYO3_SKIP_VERSION_CHECK=1 "$python" -m pip install --quiet --no-build-isolation \
        --no-binary cryptography cryptography trustme acme
}

venv=$PWD/.venv-3.13t
python=$venv/bin/python
if [ ! -e "$venv/.stamp-packages" ] || [ pyproject.toml -nt "$venv/.stamp-packages" ]; then
    say "packages"
    [ -x "$python" ] || "$root/bin/python3.13t" -m venv "$venv"
    "$python" -m pip install --quiet --upgrade 'pip>=25.1'
    for group in build test frameworks; do "$python" scripts/group.py "$group"; done | while read -r package; do
        "$python" -m pip install --quiet --only-binary :all: "$package" 2>/dev/null </dev/null || echo "without $package"
    done
    # The newest one is compiled for others, and every test needs one.
    "$python" -c 'import hypothesis' 2>/dev/null || "$python" -m pip install --quiet 'hypothesis<6.150'
    certificates || echo "without cryptography, and so without the tests of TLS"
    touch "$venv/.stamp-packages"
fi

say "the extension (profile ${PROFILE:-quick})"
export CARGO_TARGET_DIR=$PWD/target/free-threaded VIRTUAL_ENV=$venv PYO3_PYTHON=$python
# PyO3 refuses a free-threaded interpreter before 3.14 otherwise.
export UNSAFE_PYO3_SKIP_VERSION_CHECK=1
"$venv/bin/maturin" develop --quiet --locked --profile "${PROFILE:-quick}"
export PYTHON_GIL=0
"$python" -c 'import sys, towline._native as native; print(sys.version, native.__file__, "GIL:", sys._is_gil_enabled())'
[ "${ONLY:-}" != build ] || exit 0

tests=("$@")
[ $# != 0 ] || tests=(tests/{client,server,lifecycle,http3,state,free_threading})
without_uvloop=()
"$python" -c 'import uvloop' 2>/dev/null || without_uvloop=(-k "not uvloop")
# Files that need another package that is not there are errors of the collection; the others run.
exec "$python" -m pytest -n "${PYTEST_WORKERS:-4}" --dist loadfile -p no:cacheprovider -q --continue-on-collection-errors \
    "${without_uvloop[@]}" "${tests[@]}"
