#!/usr/bin/env bash
# Builds kiln-embed and the demo and tests them:
#
#   tests/browser.sh [build] [chromium] [others] [runtimes]     (all by default)
#
#   build     both, and the models that the tests use; `models` makes these alone
#   chromium  vectors against native ones, downloads and their faults, aborts, indexes, what hostile servers, files and
#             callers do; the pages of the demo, whose screenshots go to target/screenshots. What needs no browser is
#             tested in Node.
#   others    Firefox and WebKit
#   runtimes  the npm packages in Node, Deno, Bun and workerd
#
# `build` needs KILN_MINILM (see tests/run.sh) and the command kiln (KILN_NATIVE, or the release build).
set -euo pipefail
cd "$(dirname "$0")/.."
# What runs beside it ends with it.
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

cache="${KILN_CACHE:-$HOME/.cache/kiln}"
native="${KILN_NATIVE:-${CARGO_TARGET_DIR:-target}/release/kiln}"
models="${CARGO_TARGET_DIR:-$PWD/target}/browser-models"

models() {
  rm -rf "$models"
  mkdir -p "$models"
  "$native" export --quiet --model "$KILN_MINILM" --weights int8 --output "$models/model.kiln"
  "$native" export --quiet --model "$models/model.kiln" --output "$models/folder"
  cp -r "$models/folder" "$models/plain"
  rm "$models/plain/kiln.json"
  node -e 'process.stdout.write(JSON.parse(require("fs").readFileSync("tests/browser/texts.json")).map((text) => JSON.stringify({ text }) + "\n").join(""))' > "$models/texts.jsonl"
  # A model with latents, hardly trained.
  "$native" quickstart --quiet --steps 0.004 --output "$models/quickstart" > /dev/null
  "$native" export --quiet --model "$models/quickstart/model" --output "$models/latent.kiln"
  "$native" export --quiet --model "$KILN_MINILM" --weights f32 --output "$models/f32.kiln"
  "$native" export --quiet --model "$models/quickstart/model" --weights bf16 --output "$models/bf16.kiln"
  # What stands around a text is in the files: a suffix, no BOS, an instruction that pooling leaves out.
  local around=(--weights f32 --pooling mean --add-bos false --text-suffix " in all" --padding-side left --instruction-pooling masked_without_bos)
  "$native" export --quiet --model "$models/quickstart/model" "${around[@]}" --output "$models/around.kiln"
  "$native" quantize --quiet --model tests/fixtures/rerankers/bert --scheme int8:8 --output "$models/reranker.kiln"
  "$native" export --quiet --model "$models/reranker.kiln" --output "$models/reranker"
  # A decoder that ranks, whose chat template pages do not render.
  cp -r tests/fixtures/rerankers/qwen3 "$models/decoder"
  cp -r tests/fixtures/rerankers/qwen3-one-token/. "$models/decoder"
  "$native" quantize --quiet --model "$models/decoder" --scheme int8:8 --output "$models/decoder.kiln"
  "$native" export --quiet --model "$models/decoder" --weights f32 --output "$models/decoder-f32"
  cp web-demo/kiln-mini.kiln "$models/mini.kiln"
  vectors() { "$native" embed --quiet --model "$models/$1" --device cpu --input "$models/texts.jsonl" --output "$models/$2" "${@:3}"; }
  vectors model.kiln native.jsonl
  vectors mini.kiln native-mini.jsonl
  vectors f32.kiln native-f32.jsonl
  # As pages compute it; the command itself multiplies it in bf16.
  vectors bf16.kiln native-bf16.jsonl --weights f32
  "$native" embed --quiet --model "$models/quickstart/model" --device cpu "${around[@]}" --prompt "Query: " --input "$models/texts.jsonl" --output "$models/native-around.jsonl"
}

# A test that hangs fails, instead of holding up all the others.
node_tests() { "$cache/node-24/node_modules/.bin/node" --test --test-concurrency "${at_once:-1}" --test-timeout 900000 "$@"; }
export KILN_NATIVE="$native" KILN_PKG="$PWD/wasm/pkg" KILN_DEMO="$PWD/web-demo/dist" KILN_SHOTS="$PWD/target/screenshots" KILN_MODELS="$models"

for part in "${@:-build chromium others runtimes}"; do
  for one in $part; do
    case "$one" in
      build)
        # Models take one processor for the most part, as making packages small does.
        models &
        making=$!
        web-demo/build.sh
        wait "$making"
        ;;
      models) models ;;
      chromium)
        # A file of tests is a browser of its own, and waits for a third of its time.
        KILN_PLAYWRIGHT="$cache/npm" KILN_CHROMIUM="$(command -v chromium)" at_once=2 node_tests tests/browser/*.test.mjs
        ;;
      others)
        # On a loaded machine Firefox has been seen not to answer when threads were asked of a page.
        for last in '' yes; do
          KILN_BROWSERS="$cache/browsers" node_tests tests/browser/others/*.test.mjs && break
          [ ! "$last" ] || exit 1
          echo 'browser.sh: once more, in case a browser hung' >&2
        done
        ;;
      runtimes)
        KILN_RUNTIMES="$cache/runtimes" KILN_NODE20="$cache/node-20/node_modules/.bin/node" at_once=2 node_tests tests/node/*.test.mjs
        ;;
      *)
        echo "browser.sh: unknown part $one" >&2
        exit 2
        ;;
    esac
  done
done
