#!/usr/bin/env bash
# scripts/pythons.sh [VERSION...]: builds the extension and runs the tests on CPythons that this machine does not have.
#
# The interpreters are those of Debian sid, in a chroot that debootstrap makes once (root, Linux, some 2 GB). The
# sources are copied into it; the Rust toolchain and cargo's home are bound into it. Settings of registries come
# from the environment: PIP_*, CARGO_*, *_proxy, SSL_CERT_FILE.
#
#   PYTHONS_ROOT    the chroot (default: target/pythons)
#   DEBIAN_MIRROR   (default: http://deb.debian.org/debian)
#   WHEELS          a folder, whose wheels are installed and tested instead of a build of the sources
#   PYTEST_ARGS     what pytest is given (default: tests/server tests/lifecycle tests/cli tests/client)
set -euo pipefail
cd "$(dirname "$0")/.."

versions=("$@")
[ $# != 0 ] || versions=(3.14 3.15)
root=${PYTHONS_ROOT:-target/pythons}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
tests=${PYTEST_ARGS:-tests/server tests/lifecycle tests/cli tests/client}

say() { printf '\033[1m== %s\033[0m\n' "$1"; }
need() { command -v "$1" >/dev/null || { echo "pythons: $1 is needed ($2)" >&2; exit 2; }; }

[ "$(id -u)" = 0 ] || { echo "pythons: root is needed for the chroot" >&2; exit 2; }
need debootstrap "apt-get install debootstrap"
need unshare "apt-get install util-linux"
need cargo "https://rustup.rs"

. scripts/chroot.sh
private_mounts PYTHONS_INSIDE scripts/pythons.sh "${versions[@]}"

if [ ! -e "$root/.complete" ]; then
    say "Debian sid into $root"
    mkdir -p "$root"
    debootstrap --variant=minbase --include=ca-certificates,build-essential,nghttp2-server sid "$root" "$mirror" >"$root.log" \
        || { tail -5 "$root.log" >&2; exit 1; }
    touch "$root/.complete"
fi
root=$(realpath "$root")

say "sources and toolchain"
rust=$(rustc --print sysroot)
cargo_home=${CARGO_HOME:-$HOME/.cargo}
prepare_chroot
mkdir -p "$root"/opt/{rust,cargo} "$cargo_home"
mount --bind "$rust" "$root/opt/rust"
mount --bind "$cargo_home" "$root/opt/cargo"
if [ -n "${WHEELS:-}" ]; then
    mkdir -p "$root/src/dist"
    cp "$WHEELS"/*.whl "$root/src/dist/"
fi

environment=(PATH=/opt/rust/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive
    CARGO_HOME=/opt/cargo CARGO_TARGET_DIR=/target "WHEELS=${WHEELS:+/src/dist}")
add_registry_settings

failed=()
for version in "${versions[@]}"; do
    say "CPython $version"
    if ! chroot "$root" dpkg -s "python$version-dev" "python$version-venv" >/dev/null 2>&1; then
        # The chroot may be older, or younger, than the mirror's signatures allow.
        inside apt-get -o Acquire::Check-Valid-Until=false update -qq
        inside apt-get install -qq --yes --no-install-recommends "python$version-dev" "python$version-venv" >/dev/null
    fi
    # shellcheck disable=SC2086
    inside /src/scripts/test_python.sh "$version" $tests || failed+=("$version")
done

if [ ${#failed[@]} != 0 ]; then
    echo "pythons: failed on CPython ${failed[*]}" >&2
    exit 1
fi
echo "pythons: passed on CPython ${versions[*]}"
