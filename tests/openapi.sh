#!/usr/bin/env bash
# Asks servers, one of an embedder and a reranker and one of a reranker alone, for what their own OpenAPI documents promise,
# and for what they say they refuse: schemathesis, from PyPI, makes the requests up. Opt-in; needs the command kiln
# (KILN_NATIVE, or the release build).
#
#   tests/openapi.sh [EXAMPLES]     (default: 300 for each route)
set -euo pipefail
cd "$(dirname "$0")/.."

cache="${KILN_CACHE:-$HOME/.cache/kiln}"
native="${KILN_NATIVE:-${CARGO_TARGET_DIR:-target}/release/kiln}"
if [ ! -e "$cache/schemathesis/.complete" ]; then
  python3 -m venv "$cache/schemathesis"
  "$cache/schemathesis/bin/pip" install -q --disable-pip-version-check 'schemathesis>=4'
  touch "$cache/schemathesis/.complete"
fi

folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
# Too many texts, and a body that does not call itself JSON, are refused as well.
cat >"$folder/schemathesis.toml" <<'TOML'
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 406, 413, 415, 422, 428]
TOML
keeps_to_it() { # EXAMPLES OPTIONS...: of what is served
  local examples=$1 url
  shift
  rm -f "$folder/started"
  "$native" serve --json --quiet --device cpu --port 0 --max-client-batch-size 16 "$@" >"$folder/started" &
  server=$!
  until [ -s "$folder/started" ]; do
    kill -0 "$server"
    sleep 0.1
  done
  url=$(sed -n 's/.*"url":"\([^"]*\)".*/\1/p' "$folder/started")
  "$cache/schemathesis/bin/schemathesis" --config-file "$folder/schemathesis.toml" run "$url/openapi.json" --checks all \
    --max-examples "$examples" --seed 1 --no-color
  # It answers still.
  curl -sf "$url/readyz"
  kill "$server"
  wait "$server" || true
  server=
}
keeps_to_it "${1:-300}" --model web-demo/kiln-mini.kiln --reranker tests/fixtures/rerankers/bert
keeps_to_it "${1:-300}" --reranker tests/fixtures/rerankers/bert
