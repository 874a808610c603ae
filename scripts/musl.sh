#!/usr/bin/env bash
# scripts/musl.sh WHEEL [PYTEST_ARGS...]: tests a musllinux wheel of CPython 3.11 with a CPython on musl, without Alpine.
#
# The interpreter, OpenSSL, zlib and libffi are those of Debian's source packages (bookworm), compiled once with musl-gcc into
# target/musl (some 15 minutes on two cores). It has no sqlite, curses or readline. Needs Debian's musl-tools and make. Packages of
# the tests that have no wheel for musl are left out. Without PYTEST_ARGS: tests of server, life cycle, command line and client.
#
#   MUSL_ROOT       the folder (default: target/musl)
#   DEBIAN_MIRROR   (default: http://deb.debian.org/debian)
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=${1:?usage: scripts/musl.sh WHEEL [PYTEST_ARGS...]}
shift
tests=("$@")
[ $# != 0 ] || tests=(tests/server tests/lifecycle tests/cli tests/client)
[[ $wheel = *-cp311-cp311-musllinux_*_"$(uname -m)".whl ]] || { echo "musl: $wheel is no musllinux wheel of CPython 3.11 for this machine" >&2; exit 2; }
[ -e "$wheel" ] || { echo "musl: there is no $wheel (scripts/wheels.sh $(uname -m)-unknown-linux-musl)" >&2; exit 2; }
command -v musl-gcc >/dev/null || { echo "musl: musl-gcc is needed (apt-get install musl-tools)" >&2; exit 2; }

mkdir -p "${MUSL_ROOT:-target/musl}"
root=$(realpath "${MUSL_ROOT:-target/musl}")
jobs=$(nproc)
say() { printf '\033[1m== %s\033[0m\n' "$1"; }

# step NAME: true, in an empty folder of its own with the sources of package NAME, if NAME is not there yet.
step() {
    [ ! -e "$root/done-$1" ] || return 1
    say "$1"
    rm -rf "$root/build-$1"
    mkdir "$root/build-$1"
    tar --extract --file "$(ls "$root"/sources/"$1"_*.orig.tar.*[z2])" --directory "$root/build-$1" --strip-components 1
    cd "$root/build-$1"
}
finished() {
    cd "$root"
    rm -rf "$root/build-$1"
    touch "$root/done-$1"
}

if [ ! -e "$root/done-sources" ]; then
    say "sources"
    mkdir -p "$root/lists/partial" "$root/sources"
    echo "deb-src ${DEBIAN_MIRROR:-http://deb.debian.org/debian} bookworm main" >"$root/sources.list"
    settings=(-qq -o "Dir::Etc::sourcelist=$root/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$root/lists"
        -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root)
    apt-get "${settings[@]}" update
    (cd "$root/sources" && apt-get "${settings[@]}" source --download-only zlib libffi openssl python3.11)
    touch "$root/done-sources"
fi

# The kernel's headers alone: others of /usr/include are glibc's.
mkdir -p "$root/include" "$root/kernel"
ln -sfn /usr/include/linux "$root/kernel/linux"
ln -sfn /usr/include/asm-generic "$root/kernel/asm-generic"
ln -sfn "/usr/include/$(uname -m)-linux-gnu/asm" "$root/kernel/asm"
# It has no name of the platform (multiarch): musl-gcc would give glibc's.
# shellcheck disable=SC2016
printf '#!/bin/sh\ncase $1 in *-print-multiarch) exit 1 ;; esac\nexec musl-gcc -idirafter "%s/kernel" "$@"\n' "$root" >"$root/cc"
# Else CPython's setup.py adds the headers of glibc.
mkdir -p "$root/no-multiarch"
printf '#!/bin/sh\nexit 1\n' >"$root/no-multiarch/dpkg-architecture"
chmod 755 "$root/cc" "$root/no-multiarch/dpkg-architecture"
export CC="$root/cc" CFLAGS="-O2 -fPIC -I$root/include" LDFLAGS="-L$root/lib"
(
    if step zlib; then
        ./configure --static --prefix="$root" >log
        make -j "$jobs" install >>log 2>&1
        finished zlib
    fi
    if step libffi; then
        ./configure --prefix="$root" --libdir="$root/lib" --disable-shared --with-pic --disable-docs --disable-multi-os-directory --disable-exec-static-tramp >log
        make -j "$jobs" install >>log 2>&1
        finished libffi
    fi
    if step openssl; then
        # musl has no ucontext, which async needs.
        ./Configure "linux-$(uname -m)" --prefix="$root" --libdir=lib --openssldir=/etc/ssl no-shared no-tests no-async no-engine >log
        make -j "$jobs" build_libs >>log 2>&1
        make install_dev >>log 2>&1
        finished openssl
    fi
    if step python3.11; then
        ./configure --prefix="$root" --with-openssl="$root" --without-doc-strings >log
        PATH=$root/no-multiarch:$PATH make -j "$jobs" >>log 2>&1
        PATH=$root/no-multiarch:$PATH make install >>log 2>&1
        finished python3.11
    fi
)

say "packages"
python=$root/venv/bin/python
[ -x "$python" ] || "$root/bin/python3.11" -m venv "$root/venv"
"$python" -m pip install --quiet --upgrade 'pip>=25.1'
for group in test frameworks; do "$python" scripts/group.py "$group"; done | while read -r package; do
    "$python" -m pip install --quiet --only-binary :all: "$package" 2>/dev/null </dev/null || echo "without $package"
done
if ! ("$python" -c 'import cryptography.x509') 2>/dev/null; then
    "$python" -m pip uninstall --quiet --yes cryptography 2>/dev/null
    echo "without cryptography, whose wheel does not run here, and so without the tests of TLS"
fi
"$python" -m pip install --quiet --force-reinstall --no-deps "$wheel"
"$python" -m pip install --quiet "$wheel"
"$python" -c 'import platform, sys; from towline import _native; print(sys.version, *platform.libc_ver(), _native.__file__)'
# Files that need a package that is not there are errors of the collection; the others run.
exec "$python" -m pytest -n "$jobs" --dist loadfile -p no:cacheprovider -q --continue-on-collection-errors "${tests[@]}"
