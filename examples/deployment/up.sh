#!/usr/bin/env bash
# examples/deployment/up.sh: builds and starts compose.yaml, and returns when the application is ready. Then:
#
#   curl http://127.0.0.1:8000/                               the application, through nginx
#   towline load -c 20 -d 60 http://127.0.0.1:8000/           something to see in http://127.0.0.1:3000/dashboards
#   docker compose -f examples/deployment/compose.yaml down
set -euo pipefail
cd "$(dirname "$0")"

if ! compgen -G "wheels/*.whl" > /dev/null; then
    # Towline is not on a package index yet: the image installs this wheel.
    PYTHONS=3.13 OUT=examples/deployment/wheels ../../scripts/wheels.sh
fi
exec docker compose up --build --detach --wait
