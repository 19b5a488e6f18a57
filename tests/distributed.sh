#!/usr/bin/env bash
# The Python package on Ray, Daft and Spark, whose workers and nodes are killed, and into LanceDB, Qdrant and Postgres:
# all of them real, on this machine.
#
#   tests/distributed.sh [PYTEST'S ARGUMENTS]    about five minutes; 1.5 GB from PyPI, and a Java
#   tests/distributed.sh rates [NAME ...]        texts a second with one and two workers, rows a second into stores
#
# KILN_WHEEL names a wheel to test in the place of one that is built here, such as a release's.
set -euo pipefail
cd "$(dirname "$0")/.."

export KILN_CACHE="${KILN_CACHE:-$HOME/.cache/kiln}"
tests/setup.sh wheel distributed
venv="$KILN_CACHE/distributed"

# The same as in tests/run.sh, so that the workspace's own crates are not compiled again.
wheel=${KILN_WHEEL:-$(RUSTC_WORKSPACE_WRAPPER="$PWD/tests/lint.sh" train-native/python/build.sh --quick)}
"$venv/bin/pip" install -q --disable-pip-version-check --force-reinstall --no-deps "$wheel"
# Now that what the adapters are for is there, their types are checked against it.
"$KILN_CACHE/wheel/bin/mypy" --config-file train-native/python/pyproject.toml --python-executable "$venv/bin/python" \
  train-native/python/python/kiln_embed/integrations/{ray,daft,spark}.py train-native/python/python/kiln_embed/stores

# They send home what is done with them, if they are let.
export RAY_USAGE_STATS_ENABLED=0 DAFT_ANALYTICS_ENABLED=0 DO_NOT_TRACK=true
if [ "${1:-}" = rates ]; then
  exec "$venv/bin/python" tests/python/distributed/rates.py "${@:2}"
fi
# The tests import the installed package: none of that name is on their path.
"$venv/bin/python" -m pytest -q -rs -p no:cacheprovider tests/python/distributed "$@"
