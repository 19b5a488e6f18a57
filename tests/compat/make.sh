#!/bin/sh
# Makes the files of one format generation, which every later version must read (tests/cli/compat.rs).
# Run it once where a format changes, into a new folder, and commit that folder; what is in an older
# one never changes.
#
#   tests/compat/make.sh v2 [kiln]
set -eu
kiln=$(realpath "$(command -v "${2:-kiln}")")
cd "$(dirname "$0")"
out=$1
[ ! -e "$out" ] || { echo "$out is there already; old files stay as they are" >&2; exit 1; }
mkdir "$out"
cd "$out"

cat > texts.txt <<'TEXTS'
the river floods the lower streets
a violinist from a small town
granite walls and a long way up
the ship carried tea and timber
petals of pale blue in wet meadows
a portrait hangs in the hall
TEXTS
cat > data.jsonl <<'DATA'
{"query":"where does the river flood","pos":["the river floods the lower streets"],"neg":["granite walls and a long way up"]}
{"query":"who came from a small town","pos":["a violinist from a small town"],"neg":["the ship carried tea and timber"]}
{"query":"what did the ship carry","pos":["the ship carried tea and timber"],"neg":["a violinist from a small town"]}
{"query":"which colour are the petals","pos":["petals of pale blue in wet meadows"],"neg":["a portrait hangs in the hall"]}
DATA
cat > recipe.toml <<'RECIPE'
name = "compat"
description = "A model of a few thousand parameters"
seed = 5

[model]
max_length = 24
pooling = { mode = "mean" }
prompts = { query = "find: " }

[model.new]
vocab_size = 300
hidden_size = 16
intermediate_size = 24
layers = 1
heads = 2

[[stage]]
name = "only"
data = ["data.jsonl"]
steps = 3
batch_size = 4
hard_negatives = 1
lr = 1e-3
RECIPE

kiln() {
  "$kiln" --device cpu --quiet "$@"
}

# The checkpoint of a run that was cut short after two of its three steps, and the vectors of the
# model that the third step gives.
kiln train --recipe recipe.toml --output run --checkpoint-every 1 --keep 3 > /dev/null
mkdir -p checkpoint/checkpoints
mv run/checkpoints/00000002 checkpoint/checkpoints/
head -n 2 run/metrics.jsonl > checkpoint/metrics.jsonl
kiln embed --model run/model --input texts.txt --output resumed.jsonl > /dev/null
rm -r run

# Blocks of quantized numbers need rows of 32.
kiln train --recipe recipe.toml --output run \
  --set model.new.hidden_size=32 --set model.new.intermediate_size=32 > /dev/null
model=run/model
kiln export --model "$model" --output model > /dev/null
kiln quantize --model "$model" --scheme int8 --output int8.kiln > /dev/null
kiln quantize --model "$model" --scheme int4 --output int4.kiln > /dev/null
rm -r run

# Each format of vectors, which is also a saved index.
for format in npy jsonl parquet safetensors; do
  kiln embed --model model --input texts.txt --output "vectors.$format" > /dev/null
done
for weights in int8 int4; do
  kiln embed --model "$weights.kiln" --input texts.txt --output "$weights.jsonl" > /dev/null
done
