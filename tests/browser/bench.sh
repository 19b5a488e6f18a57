#!/usr/bin/env bash
# Measures kiln-embed beside transformers.js in Chromium or Node: bytes moved, time to the first vector, texts
# per second, in f32 and int8 (once more with the token table in int4), one thread each unless told otherwise. Needs wasm/build.sh,
# the command kiln (KILN_NATIVE, or the release build), KILN_PYTHON and KILN_MINILM (see tests/run.sh).
#
#   tests/browser/bench.sh TEXTS.json [--json]              texts: a JSON array of strings
#   tests/browser/bench.sh TEXTS.json --cores 2 [--json]    two threads each
#   tests/browser/bench.sh TEXTS.json --cores 2 --workers   our workers and the peer's threads: take a hundred texts
#   tests/browser/bench.sh TEXTS.json --webgpu [--json]     on WebGPU's software adapter: take few texts
#   tests/browser/bench.sh TEXTS.json --node [--cores 2]    both in Node, the peer with its native runtime
set -euo pipefail
cd "$(dirname "$0")/../.."

texts=$1
shift
cache="${KILN_CACHE:-$HOME/.cache/kiln}"
if [ ! -d "$cache/transformers-js/node_modules/@huggingface/transformers" ]; then
  # Scripts would fetch what GPUs need.
  npm install --silent --no-fund --no-audit --ignore-scripts --prefix "$cache/transformers-js" @huggingface/transformers
fi
native="${KILN_NATIVE:-${CARGO_TARGET_DIR:-target}/release/kiln}"
models="$cache/browser-bench"
if [ ! -e "$models/.complete-3" ]; then
  rm -rf "$models"
  mkdir -p "$models"
  "$native" export --quiet --model "$KILN_MINILM" --weights f32 --output "$models/f32.kiln"
  "$native" export --quiet --model "$KILN_MINILM" --weights int8 --output "$models/int8.kiln"
  "$native" export --quiet --model "$KILN_MINILM" --weights int4 --output "$models/int4.kiln"
  "$native" quantize --quiet --model "$KILN_MINILM" --scheme int8 --tensor '*word_embeddings*=int4' --output "$models/table4.kiln" > /dev/null
  "$KILN_PYTHON" tests/browser/bench/export_onnx.py "$KILN_MINILM" "$models/onnx"
  touch "$models/.complete-3"
fi
if [ "${1:-}" = --node ]; then
  shift
  exec "$cache/node-24/node_modules/.bin/node" tests/browser/bench/node.mjs --texts "$texts" --models "$models" \
    --peer "$cache/transformers-js" --pkg "$PWD/wasm/pkg" "$@"
fi
"$cache/node-24/node_modules/.bin/node" tests/browser/bench/bench.mjs --texts "$texts" --models "$models" \
  --peer "$cache/transformers-js" --pkg "$PWD/wasm/pkg" --playwright "$cache/npm" --chromium "$(command -v chromium)" "$@"
