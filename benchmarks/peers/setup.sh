#!/bin/sh
# Makes the environment in which the other frameworks run: benchmarks/peers/.venv, or the folder given.
# They need other versions of some packages than fedapm does, so they have an environment of their own. torch and numpy
# are the same in both: what is compared is the frameworks.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:-$here/.venv}
python=${PYTHON:-python3}
same=$(mktemp)
trap 'rm -f "$same"' EXIT
grep -E '^(torch|numpy)==' "$here/../../constraints.txt" > "$same"
"$python" -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --constraint "$same" \
    'pfl[pytorch]==0.6.0' 'flwr[simulation]==1.41.0'
"$venv/bin/pip" list --disable-pip-version-check --format freeze | grep -E '^(torch|pfl|flwr|ray)=='
