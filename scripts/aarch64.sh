#!/usr/bin/env bash
# scripts/aarch64.sh WHEEL [PYTEST_ARGS...]: tests a wheel of CPython 3.11 for AArch64 on another machine, under qemu's user mode emulation.
#
# The interpreter is that of Debian bookworm for arm64, unpacked once (root, Linux, some 400 MB) into a folder that is the root of
# what is emulated. Needs debootstrap and qemu-user-static. Emulated code takes ten times as long: without PYTEST_ARGS the files of
# tests that together use the wire, the loop, threads, processes, HTTP/3 and the shared state, as many as fit into a night.
#
#   AARCH64_ROOT    the folder (default: target/aarch64)
#   DEBIAN_MIRROR   (default: http://deb.debian.org/debian)
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=${1:?usage: scripts/aarch64.sh WHEEL [PYTEST_ARGS...]}
shift
tests=("$@")
# Of tests/state without those that kill a writer: qemu does not tell the kernel which robust mutexes a thread holds, so nobody learns
# that their owner has died.
[ $# != 0 ] || tests=(tests/client/test_{aio_loops,blocking_fork,blocking_threads,clients,decode_codings,http2,http2_messages,http3,json,sse,websocket}.py
    tests/server/test_{asgi_flush,asgi_receive,asgi_response,asgi_scope,asgi_steps,http2,http2_asgi,http3,http3_early_data,http3_messages,static}.py
    tests/server/test_{tls,websocket,websocket_http2,wsgi_environ,wsgi_input,wsgi_life,wsgi_response}.py tests/http3/test_{qpack,workers}.py
    tests/lifecycle/test_{accept_balance,limits,metrics,signals,stopping,workers}.py
    tests/state/test_{clock,contract_locks,contract_messages,contract_values,messages,processes,server,values}.py
    --deselect tests/state/test_processes.py::test_an_event_loop_goes_on_while_another_process_writes
    --deselect tests/state/test_processes.py::test_a_stopped_writer_blocks_no_reader_and_no_loop)
root=${AARCH64_ROOT:-target/aarch64}
emulator=/usr/bin/qemu-aarch64-static

need() { command -v "$1" >/dev/null || { echo "aarch64: $1 is needed (apt-get install $2)" >&2; exit 2; }; }
say() { printf '\033[1m== %s\033[0m\n' "$1"; }
[[ $wheel = *-cp311-cp311-manylinux*_aarch64.whl ]] || { echo "aarch64: $wheel is no manylinux wheel of CPython 3.11 for AArch64" >&2; exit 2; }
[ -e "$wheel" ] || { echo "aarch64: there is no $wheel (PYTHONS=3.11 scripts/wheels.sh aarch64-unknown-linux-gnu)" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "aarch64: root is needed for chroot" >&2; exit 2; }
need debootstrap debootstrap
need unshare util-linux
need "$emulator" qemu-user-static

. scripts/chroot.sh
private_mounts AARCH64_INSIDE scripts/aarch64.sh "$wheel" "${tests[@]}"

if [ ! -e "$root/.complete" ]; then
    say "Debian bookworm for arm64 into $root"
    mkdir -p "$root"
    debootstrap --arch=arm64 --foreign --variant=minbase --include=ca-certificates,python3.11,python3.11-venv bookworm "$root" \
        "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$root.log" || { tail -5 "$root.log" >&2; exit 1; }
    # Unpacked, without the scripts of packages: an interpreter needs no more.
    for package in "$root"/var/cache/apt/archives/*.deb; do dpkg --extract "$package" "$root"; done
    touch "$root/.complete"
fi
root=$(realpath "$root")

# The kernel starts the emulator for AArch64's programs; F: it opens the emulator now, so that it need not be in the folder.
registry=/proc/sys/fs/binfmt_misc
[ -e "$registry/register" ] || mount -t binfmt_misc binfmt_misc "$registry"
if [ ! -e "$registry/towline-aarch64" ]; then
    magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
    mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    echo ":towline-aarch64:M::$magic:$mask:$emulator:F" >"$registry/register"
fi
trap 'echo -1 >"$registry/towline-aarch64"' EXIT

say "sources and packages"
prepare_chroot
cp "$wheel" "$root/src/"
environment=(PATH=/venv/bin:/usr/bin:/bin HOME=/root LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 TOWLINE_TEST_PATIENCE=10)
add_registry_settings

inside sh -c 'test -x /venv/bin/python || /usr/bin/python3.11 -m venv --without-pip /venv'
# By this machine's pip: emulated, each of its starts takes seconds.
install() {
    "${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --target "$root/venv/lib/python3.11/site-packages" --upgrade \
        --only-binary :all: --implementation cp --python-version 3.11 --abi cp311 --abi abi3 --abi none \
        --platform manylinux_2_34_aarch64 --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 "$@"
}
if [ ! -e "$root/venv/.stamp" ] || [ pyproject.toml -nt "$root/venv/.stamp" ]; then
    # pip judges markers by its own interpreter; before 3.11.3 redis and valkey need this one.
    packages=(async-timeout)
    while read -r package; do
        if install --no-deps --dry-run "$package" 2>/dev/null </dev/null; then packages+=("$package"); else echo "without $package"; fi
    done < <("${PYTHON:-python3}" scripts/group.py test)
    install "${packages[@]}"
    touch "$root/venv/.stamp"
fi
install --no-deps --force-reinstall "$wheel"
install "$wheel"
inside python -c 'import platform, sys; from towline import _native; print(sys.version, platform.machine(), _native.__file__)'
inside sh -c 'cd /src; exec python -m pytest -n '"$(nproc)"' --dist loadfile -p no:cacheprovider --timeout 1800 -q "$@"' sh "${tests[@]}"
