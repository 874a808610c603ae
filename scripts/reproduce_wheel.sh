#!/usr/bin/env bash
# scripts/reproduce_wheel.sh WHEEL: builds the wheel again, from a clone of HEAD in another folder, and compares the bytes.
#
# HEAD must be the wheel's revision, and the toolchain its (RUSTUP_TOOLCHAIN).
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=${1:?usage: scripts/reproduce_wheel.sh WHEEL}
name=$(basename "$wheel")

[[ $name =~ -cp3([0-9]+)-.*(manylinux|musllinux).*_(x86_64|aarch64)\.whl$ ]] || { echo "reproduce: $name is not a wheel of scripts/wheels.sh" >&2; exit 2; }
python=3.${BASH_REMATCH[1]}
case ${BASH_REMATCH[2]} in
    manylinux) target=${BASH_REMATCH[3]}-unknown-linux-gnu ;;
    musllinux) target=${BASH_REMATCH[3]}-unknown-linux-musl ;;
esac

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git clone --quiet --no-hardlinks . "$folder/clone"
PYTHONS=$python OUT=$folder/dist CARGO_TARGET_DIR=$folder/target "$folder/clone/scripts/wheels.sh" "$target"
if ! cmp "$wheel" "$folder/dist/$name"; then
    python3 - "$wheel" "$folder/dist/$name" <<'END'
import sys, zipfile
first, second = (zipfile.ZipFile(path) for path in sys.argv[1:])
for name in sorted({*first.namelist(), *second.namelist()}):
    here = [name in archive.namelist() and archive.read(name) for archive in (first, second)]
    if here[0] != here[1]:
        print("differs:", name)
END
    exit 1
fi
echo "$name: the same bytes"
