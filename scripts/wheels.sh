#!/usr/bin/env bash
# scripts/wheels.sh [TARGET...]: builds wheels and the sdist into dist/ and checks them (scripts/check_wheels.py).
#
# zig (of PyPI) links, so that a wheel runs on systems that are older than this one: manylinux2014 (glibc 2.17) and
# musllinux_1_2. A target needs its Rust library: `rustup target add TARGET`, or its sources (`rust-src`) with
# RUSTC_BOOTSTRAP=1 CARGO_UNSTABLE_BUILD_STD=std,panic_abort, which compiles it. No interpreter is needed but the one that
# runs maturin: the extension is not linked with Python, and PyO3 is told the version. Wheels for macOS need a Mac, because
# Apple's libraries are there only; they run on macOS 11 and later.
#
#   TARGET    x86_64-unknown-linux-gnu, aarch64-unknown-linux-gnu, x86_64-unknown-linux-musl, aarch64-unknown-linux-musl; `all` for
#             the four; aarch64-apple-darwin, x86_64-apple-darwin; `sdist`. Default: that of this machine, with glibc or macOS
#   PYTHONS   versions of CPython, with a t for a free-threaded one (default: 3.10 to 3.15, 3.14t and 3.15t)
#   OUT       (default: dist)
#
# The same revision, toolchain and packages give the same bytes in any folder: times are the commit's, and paths are
# replaced by names.
set -euo pipefail
cd "$(dirname "$0")/.."

pythons=${PYTHONS:-3.10 3.11 3.12 3.13 3.14 3.15 3.14t 3.15t}
out=${OUT:-dist}
everything=(x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu x86_64-unknown-linux-musl aarch64-unknown-linux-musl)
targets=("$@")
[ $# != 0 ] || targets=("$(rustc --print host-tuple)")
[ "${targets[*]}" != all ] || targets=("${everything[@]}" sdist)

say() { printf '\033[1m== %s\033[0m\n' "$1"; }
venv=.venv-wheels
if [ ! -e "$venv/.stamp" ] || [ pyproject.toml -nt "$venv/.stamp" ]; then
    say "installing the tools of wheels"
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --upgrade 'pip>=25.1'
    "$venv/bin/python" -m pip install --quiet --group build --group wheels
    touch "$venv/.stamp"
fi
export PATH="$PWD/$venv/bin:$PATH"

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
export SOURCE_DATE_EPOCH
# A folder of its own: these flags would make each `make build` compile everything again.
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target/wheels}
mkdir -p "$CARGO_TARGET_DIR"
CARGO_TARGET_DIR=$(cd "$CARGO_TARGET_DIR" && pwd -P)
export CARGO_TARGET_DIR MACOSX_DEPLOYMENT_TARGET=11.0
rust_names=() c_names=()
for pair in "$PWD=towline" "$CARGO_TARGET_DIR=target" "${CARGO_HOME:-$HOME/.cargo}=cargo"; do
    rust_names+=("--remap-path-prefix=$pair")
    c_names+=("-ffile-prefix-map=$pair")
done
export RUSTFLAGS="${rust_names[*]} ${RUSTFLAGS:-}" CFLAGS="${c_names[*]} ${CFLAGS:-}"
# A wheel of 5.9 MB, where thin LTO makes one of 6.1; it takes a minute and a half more for each.
export CARGO_PROFILE_RELEASE_LTO=fat

# build TARGET VERSION OPTION...: one wheel into $CARGO_TARGET_DIR/built.
build() {
    local config=$CARGO_TARGET_DIR/cpython-$1-$2.txt platform=${1/unknown-/} flags=
    [ "${2%t}" = "$2" ] || flags=Py_GIL_DISABLED
    # The suffix names libc and architecture as CPython does: cpython-314-x86_64-linux-musl, cpython-314-darwin.
    [[ $1 != *-darwin ]] || platform=darwin
    printf '%s\n' implementation=CPython "version=${2%t}" shared=true abi3=false pointer_width=64 "build_flags=$flags" \
        "ext_suffix=.cpython-${2/./}-$platform.so" suppress_build_script_link_lines=false >"$config"
    PYO3_CONFIG_FILE=$config maturin build --quiet --release --locked --target "$1" "${@:3}" --out "$CARGO_TARGET_DIR/built"
}

mkdir -p "$out"
missing=()
for target in "${targets[@]}"; do
    case $target in
        sdist)
            say "sdist"
            maturin sdist --out "$out" 2>/dev/null
            continue
            ;;
        *-gnu) options=(--zig --compatibility manylinux2014) ;;
        *-musl) options=(--zig --compatibility musllinux_1_2) ;;
        *-darwin) options=(--compatibility pypi) ;;
        *) echo "wheels: unknown target $target" >&2; exit 2 ;;
    esac
    if [ -z "${CARGO_UNSTABLE_BUILD_STD:-}" ] && [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]; then
        echo "wheels: no Rust library for $target: rustup target add $target" >&2
        missing+=("$target")
        continue
    fi
    say "$target"
    rm -rf "$CARGO_TARGET_DIR/built"
    for version in $pythons; do build "$target" "$version" "${options[@]}"; done
    python scripts/pack_wheel.py "$CARGO_TARGET_DIR/built"/*.whl
    mv "$CARGO_TARGET_DIR/built"/*.whl "$out"
done

say "checks"
python scripts/check_wheels.py "$out"
[ ${#missing[@]} = 0 ] || { echo "wheels: not built: ${missing[*]}" >&2; exit 1; }
