"""Makes the table of pruned and retrained models in train-native/RESULTS.md: method x pattern x (before, retrained, distilled) x precision.

    python tests/reference/compression_table.py --native target/release/kiln --model MODEL --out DIR \
      [--methods magnitude,wanda,sparsegpt] [--patterns 2:4,4:8,50%] [--states before,retrained,distilled] \
      [--precisions f32,int8] [--steps 200] [--tasks Cranfield,CISI,..]

Runs in a folder with `data/`, whose collections the recipe (recipes/examples/retrain.toml) and the suite `local` name. It goes
on where it was cut short: what DIR has is not made again. Prints Markdown; DIR/table.json has every task. Python's standard
library is enough; `zstdcat` reads the calibration texts.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

RECIPE = Path(__file__).parents[2] / "train-native/recipes/examples/retrain.toml"
TASKS = "Cranfield,CISI,STSBenchmarkDev,SICKDev,Banking77,TRECQuestions,TwentyNewsgroupsSubjects,MRPC,WikiQA,SummEval"
# Collections whose texts calibrate, so many of each, evenly spread over them.
CALIBRATION = {
    "data/retrieval/squad_nqg_sentences/corpus.jsonl.zst": 300,
    "data/retrieval/medquad/corpus.jsonl.zst": 250,
    "data/retrieval/tldr_pages/corpus.jsonl": 250,
}


def listed(text):
    return text.split(",")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--native", required=True, type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--methods", type=listed, default=["magnitude", "wanda", "sparsegpt"])
    parser.add_argument("--patterns", type=listed, default=["2:4", "4:8", "50%"])
    parser.add_argument("--states", type=listed, default=["before", "retrained", "distilled"])
    parser.add_argument("--precisions", type=listed, default=["f32"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tasks", type=listed, default=listed(TASKS))
    return parser.parse_args()


def calibration(out):
    """Some texts of each collection."""
    file = out / "calibration.jsonl"
    if not file.exists():
        texts = []
        for path, count in CALIBRATION.items():
            reader = ["zstdcat", path] if path.endswith(".zst") else ["cat", path]
            lines = subprocess.run(reader, check=True, capture_output=True, text=True).stdout.splitlines()
            for line in lines[:: len(lines) // count][:count]:
                row = json.loads(line)
                texts.append(json.dumps({"text": f"{row.get('title', '')} {row['text']}".strip()}))
        write(file, "\n".join(texts) + "\n")
    return file


def write(file, text):
    partial = file.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(file)


def run(command):
    print("+", *command, file=sys.stderr, flush=True)
    return subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def pruned(args, method, pattern):
    folder = args.out / f"{method}-{pattern}"
    if not folder.exists():
        run([args.native, "prune", "--quiet", "--model", args.model, "--method", method, "--pattern", pattern,
             "--calibration", calibration(args.out), "--output", folder])
    return folder


def retrained(args, folder, state):
    out = folder.with_name(f"{folder.name}-{state}-{args.steps}")
    # The model is written when the run is over; a run that was cut short is gone on with.
    if not (out / "model").exists():
        command = [args.native, "train", "--recipe", RECIPE, "--data-dir", ".", "--output", out, "--set", f"model.base={folder}",
                   "--set", f"stage.1.steps={args.steps}"]
        if state == "distilled":
            teacher = f'{{ teacher = "{args.model}", vectors = 1.0, scores = 1.0, layers = "uniform" }}'
            command += ["--set", f"stage.1.distillation={teacher}"]
        run([*command, *(["--resume"] if out.exists() else [])])
    return out / "model"


def scored(args, model, name, precision):
    file = args.out / f"{name}-{precision}.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    missing = [task for task in args.tasks if task not in found]
    if missing:
        weights = [] if precision == "f32" else ["--weights", precision]
        only = [part for task in missing for part in ("--only", task)]
        said = json.loads(run([args.native, "eval", "--json", "--model", model, "--suite", "local", "--data", "data", *only, *weights,
                               "--no-cache", "--output", args.out / "results" / f"{name}-{precision}"]))
        found |= {task["task"]: {"type": task["type"], "score": 100 * task["main_score"]} for task in said["tasks"]}
        write(file, json.dumps(found, indent=1))
    return {task: found[task] for task in args.tasks if task in found}


def line(name, precision, scores):
    def mean(kind=None):
        chosen = [score["score"] for score in scores.values() if kind in (None, score["type"])]
        return f"{sum(chosen) / len(chosen):.2f}" if chosen else ""

    cells = [name, precision, mean(), mean("Retrieval"), mean("STS"), mean("Classification")]
    cells += [f"{scores[task]['score']:.2f}" if task in scores else "" for task in ("STSBenchmarkDev", "Cranfield")]
    print("| " + " | ".join(cells) + " |", flush=True)


def main():
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    table = {}
    print(f"| model | weights | mean of {len(args.tasks)} | retrieval | STS | classification | STS-B dev | Cranfield |")
    print("|---|---|---|---|---|---|---|---|")

    def report(model, name, precision):
        table[f"{name}, {precision}"] = scores = scored(args, model, name, precision)
        line(name, precision, scores)
        write(args.out / "table.json", json.dumps(table, indent=1))

    for precision in args.precisions:
        report(args.model, "full", precision)
    for pattern in args.patterns:
        for method in args.methods:
            folder = pruned(args, method, pattern)
            for state in args.states:
                model = folder if state == "before" else retrained(args, folder, state)
                name = folder.name if state == "before" else model.parent.name
                for precision in args.precisions:
                    report(model, name, precision)


if __name__ == "__main__":
    main()
