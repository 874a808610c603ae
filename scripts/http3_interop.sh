#!/usr/bin/env bash
# scripts/http3_interop.sh [PYTEST_ARGS...]: HTTP/3 both ways with curl, nginx, Caddy and HAProxy of Debian sid.
#
# The programs come from a chroot that debootstrap makes once (root, Linux, some 600 MB); wrappers in its folder
# run them with their own libraries, outside of the chroot. Then tests/http3 and the tests of our client with other servers run
# with these programs; they are skipped where the machine's own have no HTTP/3. For the bench set TOWLINE_BENCH_BIN to the
# folder of the wrappers.
#
#   HTTP3_ROOT      the chroot (default: target/http3)
#   HTTP3_ONLY      "programs": makes the wrappers only
#   DEBIAN_MIRROR   (default: http://deb.debian.org/debian)
set -euo pipefail
cd "$(dirname "$0")/.."

root=${HTTP3_ROOT:-target/http3}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
programs=(curl nginx caddy haproxy)

need() { command -v "$1" >/dev/null || { echo "http3_interop: $1 is needed ($2)" >&2; exit 2; }; }

if [ ! -e "$root/.complete" ]; then
    [ "$(id -u)" = 0 ] || { echo "http3_interop: root is needed for the chroot" >&2; exit 2; }
    need debootstrap "apt-get install debootstrap"
    printf '\033[1m== Debian sid into %s\033[0m\n' "$root"
    mkdir -p "$root"
    list=$(IFS=,; echo "${programs[*]}")
    debootstrap --variant=minbase --include="ca-certificates,$list" sid "$root" "$mirror" >"$root.log" \
        || { tail -5 "$root.log" >&2; exit 1; }
    touch "$root/.complete"
fi
root=$(realpath "$root")

# With the loader and the libraries of the chroot a program needs no chroot, and sees the files of the tests.
mkdir -p "$root/wrappers"
loader=$(find "$root/usr/lib" "$root/usr/lib64" -name 'ld-linux-*.so.*' -print -quit 2>/dev/null)
libraries=$(dirname "$(find "$root/usr/lib" -name 'libc.so.6' -print -quit)")
for program in "${programs[@]}"; do
    path=$(find "$root/usr/bin" "$root/usr/sbin" -name "$program" -print -quit)
    printf '#!/bin/sh\nexec "%s" --library-path "%s" "%s" "$@"\n' "$loader" "$libraries" "$path" >"$root/wrappers/$program"
    chmod 755 "$root/wrappers/$program"
done
echo "http3_interop: programs in $root/wrappers"
[ "${HTTP3_ONLY:-}" != programs ] || exit 0

TOWLINE_HTTP3_BIN=$root/wrappers TOWLINE_HTTP3_REQUIRED=1 \
    .venv/bin/python -m pytest tests/http3 tests/client/test_http3.py::test_servers_of_other_projects -q -rs "$@"
