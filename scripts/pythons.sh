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

# The mounts below belong to this process alone and go with it.
if [ -z "${PYTHONS_INSIDE:-}" ]; then
    PYTHONS_INSIDE=1 exec unshare --mount --propagation private "$0" "${versions[@]}"
fi

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
mkdir -p "$root"/{src,opt/rust,opt/cargo,proc,dev} "$cargo_home"
mount --bind "$rust" "$root/opt/rust"
mount --bind "$cargo_home" "$root/opt/cargo"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
fi
# Removed files must not stay; what was built does.
find "$root/src" -mindepth 1 -maxdepth 1 ! -name '.venv-*' -exec rm -rf {} +
git ls-files -z --cached --others --exclude-standard \
    | tar --create --null --ignore-failed-read --files-from - 2>/dev/null | tar --extract --directory "$root/src"
if [ -n "${WHEELS:-}" ]; then
    mkdir -p "$root/src/dist"
    cp "$WHEELS"/*.whl "$root/src/dist/"
fi

environment=(PATH=/opt/rust/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive
    CARGO_HOME=/opt/cargo CARGO_TARGET_DIR=/target "WHEELS=${WHEELS:+/src/dist}")
while IFS='=' read -r -d '' name value; do
    case $name in
        CARGO_HOME | CARGO_TARGET_DIR | PIP_REQUIRE_VIRTUALENV) ;;
        PIP_* | CARGO_* | *_proxy | *_PROXY | SSL_CERT_FILE)
            environment+=("$name=$value")
            # A setting that names a file or a folder: it must be there inside as well.
            if [ "${value#/}" != "$value" ] && [ -e "$value" ] && [ ! -e "$root$value" ]; then
                mkdir -p "$(dirname "$root$value")"
                cp -rL "$value" "$root$value"
            fi
            ;;
    esac
done < <(env -0)
inside() { chroot "$root" /usr/bin/env -i "${environment[@]}" "$@"; }

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
