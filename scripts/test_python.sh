#!/usr/bin/env bash
# scripts/test_python.sh VERSION [TESTS...]: builds the extension for a CPython of this machine and runs the tests with it,
# in an environment of its own, .venv-VERSION. Without TESTS: those of server, life cycle, command line and client. A free-threaded
# one (3.14t) runs without the GIL, and also the tests of HTTP/3, state and threads.
#
#   WHEELS   a folder, whose wheel for that CPython is installed and tested instead of a build of the sources
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?usage: scripts/test_python.sh VERSION [TESTS...]}
shift
tests=("$@")
[ $# != 0 ] || tests=(tests/server tests/lifecycle tests/cli tests/client)
if [[ $version = *t ]]; then
    # Otherwise a package that does not declare itself safe turns it on.
    export PYTHON_GIL=0
    [ $# != 0 ] || tests+=(tests/http3 tests/state tests/free_threading)
fi

venv=.venv-$version
python=$venv/bin/python
[ -x "$python" ] || "python$version" -m venv "$venv"
"$python" -m pip install --quiet --upgrade 'pip>=25.1'
"$python" -m pip install --quiet --group build
groups=(test frameworks sdks)
if ! "$python" -m pip install --quiet --only-binary :all: "${groups[@]/#/--group=}" 2>/dev/null; then
    # One by one: a package without a wheel for this interpreter is left out, and its tests with it.
    for group in "${groups[@]}"; do
        "$python" scripts/group.py "$group" | while read -r package; do
            "$python" -m pip install --quiet --only-binary :all: "$package" 2>/dev/null </dev/null \
                || echo "without $package, which has no wheel for CPython $version"
        done
    done
fi
if [ -n "${WHEELS:-}" ]; then
    abi=cp${version/./}
    wheels=("$WHEELS"/towline-*-"${abi%t}-$abi"-*_"$(uname -m)".whl)
    "$python" -m pip install --quiet --force-reinstall --no-deps "${wheels[0]}"
    "$python" -m pip install --quiet "${wheels[0]}"
    echo "testing ${wheels[0]}"
else
    echo "building the extension (profile quick)"
    VIRTUAL_ENV=$PWD/$venv PYO3_PYTHON=$PWD/$python "$venv/bin/maturin" develop --quiet --locked --profile quick
fi
"$python" -VV
exec "$python" -m pytest -n "$(getconf _NPROCESSORS_ONLN)" --dist loadfile -p no:cacheprovider -q "${tests[@]}"
