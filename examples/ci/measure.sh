#!/usr/bin/env bash
# Builds both checkouts (./old, ./new) and measures them together: measured/result.json.gz.
# `examples/ci/towline-bench.yml` runs it in each of its jobs; set the installation and the command here.
set -euo pipefail
scenarios=${SCENARIOS:-hello,json}

rm -f builds.toml
for build in old new; do
    python -m venv "venv-$build"
    "venv-$build/bin/pip" install --quiet "./$build"
    # {app} is the bench's own application, which serves every scenario of the catalogue.
    cat >> builds.toml <<END
[$build]
command = "$PWD/venv-$build/bin/towline serve {app} --interface {interface} --bind {host}:{port}"
interfaces = ["asgi"]
END
done
towline bench servers --servers builds.toml --subject old,new --baseline new --scenario "$scenarios" -o measured "$@"
