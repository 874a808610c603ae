#!/usr/bin/env bash
# Installs Debian's Chromium for the tests of the bench's page where that is possible.
# Never fails: without a browser those tests are skipped, with the reason.
set -uo pipefail

for name in chromium chromium-browser google-chrome chrome; do
    command -v "$name" >/dev/null && exit 0
done
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "no Chromium: the tests of the bench's page will be skipped (install chromium)"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq && apt-get install -qq --yes --no-install-recommends chromium >/dev/null \
    || echo "Chromium cannot be installed here: the tests of the bench's page will be skipped"
