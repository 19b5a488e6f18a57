#!/usr/bin/env bash
# Builds kiln-embed and the demo and tests them in Chromium: vectors against native ones, downloads and
# their faults, aborts, indexes, what hostile servers, files and callers do; the pages of the demo, whose
# screenshots go to target/screenshots. What needs no browser is tested in Node. Needs
# KILN_MINILM (see tests/run.sh) and the command kiln (KILN_NATIVE, or the release build).
set -euo pipefail
cd "$(dirname "$0")/.."

web-demo/build.sh
cache="${KILN_CACHE:-$HOME/.cache/kiln}"
native="${KILN_NATIVE:-${CARGO_TARGET_DIR:-target}/release/kiln}"
models=$(mktemp -d)
trap 'rm -rf "$models"' EXIT

"$native" export --quiet --model "$KILN_MINILM" --weights int8 --output "$models/model.kiln"
"$native" export --quiet --model "$models/model.kiln" --output "$models/folder"
cp -r "$models/folder" "$models/plain"
rm "$models/plain/kiln.json"
node -e 'process.stdout.write(JSON.parse(require("fs").readFileSync("tests/browser/texts.json")).map((text) => JSON.stringify({ text }) + "\n").join(""))' > "$models/texts.jsonl"
# A model with latents, hardly trained.
"$native" quickstart --quiet --steps 0.004 --output "$models/quickstart" > /dev/null
"$native" export --quiet --model "$models/quickstart/model" --output "$models/latent.kiln"
"$native" export --quiet --model "$KILN_MINILM" --weights f32 --output "$models/f32.kiln"
# What stands around a text is in the files: a suffix, no BOS, an instruction that pooling leaves out.
"$native" export --quiet --model "$models/quickstart/model" --weights f32 --pooling mean --add-bos false --text-suffix " in all" --padding-side left --instruction-pooling masked_without_bos --output "$models/around.kiln"
cp web-demo/kiln-mini.kiln "$models/mini.kiln"
vectors() { "$native" embed --quiet --model "$models/$1" --device cpu --input "$models/texts.jsonl" --output "$models/$2"; }
vectors model.kiln native.jsonl
vectors mini.kiln native-mini.jsonl
vectors f32.kiln native-f32.jsonl
"$native" embed --quiet --model "$models/quickstart/model" --device cpu --weights f32 --pooling mean --add-bos false --text-suffix " in all" --padding-side left --instruction-pooling masked_without_bos --prompt "Query: " --input "$models/texts.jsonl" --output "$models/native-around.jsonl"

KILN_PKG="$PWD/wasm/pkg" KILN_DEMO="$PWD/web-demo/dist" KILN_SHOTS="$PWD/target/screenshots" KILN_MODELS="$models" KILN_PLAYWRIGHT="$cache/npm" KILN_CHROMIUM="$(command -v chromium)" \
  "$cache/node-24/node_modules/.bin/node" --test --test-concurrency 1 tests/browser/*.test.mjs
