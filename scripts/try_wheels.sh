#!/usr/bin/env bash
# scripts/try_wheels.sh [FOLDER_OR_FILE...]: installs each wheel (and sdist) into a clean environment of its CPython and
# runs the examples there (scripts/try_examples.py). Without an argument: dist.
#
# A wheel of a CPython that is not installed, or of another platform, is left out; at least one must have been tried.
#
#   PACKAGES=1   also the examples that need packages: FastAPI, pytest and dnspython, and SDKs of 65 MB
set -euo pipefail
cd "$(dirname "$0")/.."

packages=()
for argument in "${@:-dist}"; do
    if [ -d "$argument" ]; then packages+=("$argument"/*.whl "$argument"/*.tar.gz); else packages+=("$argument"); fi
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tried=0
for package in "${packages[@]}"; do
    [ -e "$package" ] || continue
    name=$(basename "$package")
    python=python3
    if [[ $name =~ -cp3([0-9]+)-cp3[0-9]+(t?)- ]]; then python=python3.${BASH_REMATCH[1]}${BASH_REMATCH[2]}; fi
    printf '\033[1m== %s\033[0m\n' "$name"
    # A shim of pyenv may be there without an interpreter behind it.
    if ! "$python" -c '' 2>/dev/null; then
        echo "not tried: no $python"
        continue
    fi
    rm -rf "$folder/venv"
    "$python" -m venv "$folder/venv"
    "$folder/venv/bin/python" -m pip install --quiet --upgrade 'pip>=25.1'
    if [[ $name = *.whl ]] && ! "$folder/venv/bin/python" -m pip install --quiet --no-deps --dry-run "$package"; then
        echo "not tried: another platform"
        continue
    fi
    "$folder/venv/bin/python" -m pip install --quiet "$package"
    if [ -n "${PACKAGES:-}" ]; then
        "$folder/venv/bin/python" -m pip install --quiet --group frameworks --group sdks --group test
    fi
    "$folder/venv/bin/python" scripts/try_examples.py
    tried=$((tried + 1))
done
echo "$tried tried"
[ "$tried" != 0 ]
