"""The papers' claims on a real language model: SmolLM2-135M-Instruct, trained cell by cell, scored on one light suite.

    python tests/reference/papers.py prepare --kiln target/release/kiln --datasets DATASETS --teacher MINILM --work WORK
    python tests/reference/papers.py run --kiln target/release/kiln --model SMOLLM2 --teacher MINILM --work WORK \\
        [--seeds 1,2,3] [--only CELLS] [--skip CELLS] [--largest N --more 2,3] [--again] [--steps N]
    python tests/reference/papers.py list
    python tests/reference/papers.py table

DATASETS is a folder of the collections in the layout of the suite `local` (train-native/suites/local.toml); MODEL and
MINILM are Hugging Face folders of SmolLM2-135M-Instruct and all-MiniLM-L6-v2. The recipe, the sweeps whose variants are
the cells, the suite, and what the papers found are in train-native/recipes/experiments/; what came out is in its
results/, a file a cell and seed, from which `table` makes the Markdown table of train-native/RESULTS.md.

`prepare` fills WORK/data by seed: training pairs, negatives mined with MiniLM (the nearest that score below 0.95 of the
positive; the nearest of all and random ones of ranks 30 to 100, for comparison; one in each of four bands of
similarity), and the suite's 1,481 texts.
No text of the suite but passages of its corpora is trained on (`[filter]`). Where the collections are read-only, so
they stay. `run` goes on where it was stopped: a cell that has its result is not run again, a training run that was cut
short goes on from its checkpoint. A cell that fails is kept in WORK/failed/ and the next one runs. With `--largest 4
--more 2,3` the cells of the four comparisons with the largest effects are then run with two more seeds. `table` gives
each difference the 90 % interval of a bootstrap over the suite's queries, pairs and texts, which is the noise of a
small suite and not that of training; seeds beside it show the latter. Clustering is the exception: its score is a mean
over ten k-means runs on the same texts, and only these are drawn, so its two tasks of eight bring no noise of sampling
texts, intervals are that much too narrow, and 'agrees' that much too sure.

Where a sweep has changed since a cell was run, `list` says 'done, by other settings', for the commands in its result are
not today's; `run --again` runs such a cell anew, and until then the table has the old result. Changes of smollm2.toml
and suite.toml are in no command, so they are not seen.

Python's standard library is enough; `zstd` unpacks the collections.
"""

import argparse
import collections
import contextlib
import gzip
import json
import math
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
import tomllib

HERE = pathlib.Path(__file__).parents[2] / "train-native/recipes/experiments"
SEED = 23
# Training examples of each retrieval collection, at most.
EXAMPLES = 5000
# Of those with graded negatives, of which a run sees 960 a collection.
GRADED = 1500
# A level's share of the positive's similarity, n1 first, and how far a text may be from it.
BANDS, TOLERANCE = [0.88, 0.68, 0.48, 0.28], 0.08
# Characters of a passage that are kept: more than the 64 tokens that any model here reads of it.
LONGEST = 1000
CUT = 64
PAIR, LABELLED = ("sentence1", "sentence2", "score"), ("text", "label")


def fail(message):
    sys.exit(f"papers.py: {message}")


# ------------------------------------------------------------------------------------------------ files


def read(path):
    """Rows of a JSON-lines file, plain, gzip or zstd."""
    known = [path.with_name(path.name + end) for end in ("", ".zst", ".gz")]
    found = next((one for one in known if one.exists()), None)
    if found is None:
        fail(f"{path}: no such file, nor with .zst or .gz; --datasets names the folder of the collections")
    if found.suffix == ".zst":
        text = subprocess.run(["zstd", "-dcq", found], check=True, capture_output=True).stdout.decode()
    else:
        text = (gzip.decompress(found.read_bytes()) if found.suffix == ".gz" else found.read_bytes()).decode()
    lines = text.split("\n")
    if ".tsv" in found.name:
        names = lines[0].split("\t")
        return [dict(zip(names, line.split("\t"))) for line in lines[1:] if line]
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows += [json.loads(line)] if line else []
        except ValueError:
            say(f"{found}:{number}: is no JSON; left out")
    return rows


@contextlib.contextmanager
def written(path):
    """A file that is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with open(partial, "w") as file:
        yield file
    partial.rename(path)


def write(path, rows):
    with written(path) as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def columns(rows, names):
    return [{name: row[name] for name in names} for row in rows]


def passage(row):
    return " ".join(f"{row.get('title', '')} {row['text']}".split())[:LONGEST]


def drawn(rows, count, name):
    """So many rows, in a random order that the name and the seed decide."""
    rows = sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))
    return random.Random(f"{SEED} {name}").sample(rows, min(count, len(rows)))


def of_each(rows, count, name):
    """So many rows of each label."""
    labels = collections.defaultdict(list)
    for row in columns(rows, LABELLED):
        labels[row["label"]].append(row)
    return [row for label in sorted(labels) for row in drawn(labels[label], count, f"{name} {label}")]


# ------------------------------------------------------------------------------------------------ data


def beir(folder, split):
    """Queries with one of their relevant passages, all that are known, and the corpus, each passage once."""
    corpus = {row["_id"]: passage(row) for row in read(folder / "corpus.jsonl")}
    queries = {row["_id"]: row["text"] for row in read(folder / "queries.jsonl")}
    positives = collections.defaultdict(list)
    for row in read(folder / "qrels" / f"{split}.tsv"):
        if float(row["score"]) > 0 and corpus.get(row["corpus-id"]) and row["query-id"] in queries:
            positives[row["query-id"]].append(row["corpus-id"])
    examples = []
    for query, ids in positives.items():
        texts = list(dict.fromkeys(corpus[one] for one in ids))
        examples.append({"query": queries[query], "pos": drawn(texts, 1, query), "known": texts})
    return examples, list(dict.fromkeys(text for text in corpus.values() if text))


def tldr(folder):
    """Pages less the example that is asked for; the other versions of a page are no negatives."""
    rows = read(folder / "train.jsonl")
    pages = collections.defaultdict(list)
    for row in rows:
        pages[row["id"]].append(row)
    chosen = []
    for page in drawn(pages, len(pages), "tldr pages"):
        if len(chosen) < EXAMPLES:
            chosen += pages[page]
    versions = {page: [row["pos"][0][:LONGEST] for row in rows] for page, rows in pages.items()}
    examples = []
    for row in chosen:
        examples.append({"query": row["query"], "pos": [row["pos"][0][:LONGEST]], "known": versions[row["id"]]})
    return examples, list(dict.fromkeys(text for row in examples for text in row["pos"]))


def mined(args, name, examples, corpus):
    """Negatives for examples, from two searches of the corpus: three kinds for all, four levels for some."""
    data, folder = args.work / "data", args.work / "mining" / name
    write(folder / "corpus.jsonl", ({"text": text} for text in corpus))
    own = {row["query"]: row["pos"] for row in examples}
    known = {row["query"]: {row["query"], *row["pos"], *row["known"]} for row in examples}
    search = ["--model", args.teacher, "--max-length", CUT]

    def mine(rows, *options):
        write(folder / "rows.jsonl", ({"query": row["query"], "pos": row["pos"]} for row in rows))
        call(
            [args.kiln, "--quiet", "mine", "--corpus", folder / "corpus.jsonl", "--data", folder / "rows.jsonl",
             "--output", folder / "mined.jsonl", *options]
        )
        return read(folder / "mined.jsonl")

    ways, scores = {}, folder / "scores.jsonl"
    for way, options in {
        "train": [*search, "--top-k", 200, "--negatives", 60, "--scores", scores],
        "naive": ["--from-scores", scores, "--negatives", 60, "--percent-of-positive", 0],
        "window": ["--from-scores", scores, "--negatives", 60, "--min-rank", 30, "--max-rank", 100],
    }.items():
        ways[way] = {}
        for row in mine(examples, *options):
            # What is known to be right is no negative, though the search saw only one of them.
            negatives = [text for text in row["neg"] if text not in known[row["query"]]]
            if way == "window":
                negatives = drawn(negatives, 4, row["query"])
            if negatives:
                ways[way][row["query"]] = {"query": row["query"], "pos": own[row["query"]], "neg": negatives[:4]}
    # The same queries, however their negatives are chosen.
    shared = [query for query in own if all(query in way for way in ways.values())]
    for way, rows in ways.items():
        write(data / way / f"{name}.jsonl", (rows[query] for query in shared))
    few = drawn(examples, GRADED, f"graded {name}")
    scores = folder / "scores-graded.jsonl"
    mine(few, *search, "--top-k", 2000, "--negatives", 1, "--percent-of-positive", 0, "--scores", scores)
    kept = graded(few, read(scores)[1:], corpus, known)
    write(data / f"graded/{name}.jsonl", kept)
    shutil.rmtree(folder)
    return {"train": len(shared), "graded": len(kept)}


def graded(rows, scores, corpus, known):
    """Examples with the text nearest to the middle of each band; those that lack a level are left out."""
    examples = []
    for query in scores:
        row, positive = rows[query["number"]], min(query["positive_scores"])
        if positive <= 0:
            continue
        others = [(one["score"] / positive, corpus[one["row"]]) for one in query["candidates"]]
        others = [(share, text) for share, text in others if text not in known[row["query"]]]
        levels = []
        for middle in BANDS:
            share, text = min(others, key=lambda one: abs(one[0] - middle), default=(math.inf, None))
            if abs(share - middle) <= TOLERANCE:
                levels.append(text)
        if len(set(levels)) == len(BANDS):
            negatives = {f"n{n}": text for n, text in enumerate(levels, 1)}
            examples.append({"query": row["query"], "positive": row["pos"], "negatives": negatives})
    return examples


def prepare(args):
    data, sets = args.work / "data", args.datasets
    done = data / "counts.json"
    if done.exists():
        return print(done.read_text())
    counts = {}
    if not (data / "suite/kept-out.jsonl").exists():
        suite(args, data / "suite")
    retrieval = {
        "squad": lambda: beir(sets / "retrieval/squad_nqg_sentences", "train"),
        "medquad": lambda: beir(sets / "retrieval/medquad", "train"),
        "tldr": lambda: tldr(sets / "retrieval/tldr_pages"),
        "nfcorpus": lambda: beir(sets / "retrieval/nfcorpus", "train"),
        "scifact": lambda: beir(sets / "retrieval/scifact", "train"),
    }
    for name, opened in retrieval.items():
        note = data / f"{name}.json"
        if not note.exists():
            examples, corpus = opened()
            unique = {row["query"]: row for row in examples}
            examples = drawn(list(unique.values()), EXAMPLES, name)
            say(f"{name}: {len(examples)} of {len(unique)} queries, {len(corpus)} passages")
            found = mined(args, name, examples, corpus)
            with written(note) as file:
                json.dump(found, file)
        counts[name] = json.loads(note.read_text())

    def rows(name, found):
        write(data / f"train/{name}.jsonl", found)
        counts[name] = {"train": len(found)}

    rows("snli", columns(read(sets / "nli/snli_triplets/train.jsonl"), ("anchor", "positive", "negative")))
    rows("stsb", columns(read(sets / "sts/stsbenchmark/train.jsonl"), PAIR))
    for name, path in {
        "banking77": "classification/banking77/train.jsonl",
        "emotion": "classification/emotion/train.jsonl",
        "newsgroups": "clustering/twenty_newsgroups_subjects/train.jsonl",
    }.items():
        rows(name, columns(read(sets / path), LABELLED))
    # As many of each source as the compression needs to see.
    calibration = []
    for name in [*retrieval, "stsb"]:
        for row in drawn(read(data / f"train/{name}.jsonl"), 100, f"calibration {name}"):
            calibration.append({"text": row["pos"][0] if "pos" in row else row["sentence1"]})
    write(data / "calibration.jsonl", calibration)
    graded = [row for name in retrieval for row in drawn(read(data / f"graded/{name}.jsonl"), 60, f"levels {name}")]
    write(data / "levels.jsonl", graded)
    with written(done) as file:
        json.dump(counts, file, indent=1)
    print(json.dumps(counts, indent=1))


def suite(args, folder):
    """The light suite: a draw of each collection, in the layout that `kiln eval --suite` reads."""
    sets, texts, kept_out = args.datasets, 0, []
    for name, path, split, count in (
        ("squad", "retrieval/squad_nqg_sentences", "dev", 50),
        ("cosqa", "retrieval/cosqa", "dev", 40),
    ):
        examples, corpus = beir(sets / path, split)
        asked = drawn([row for row in examples if len(row["known"]) == 1], count, f"suite {name}")
        # Each query's passage and the three that MiniLM finds nearest, as a light set has a teacher's nearest.
        mining = args.work / "mining"
        write(mining / "corpus.jsonl", ({"text": text} for text in corpus))
        write(mining / "asked.jsonl", ({"query": row["query"], "pos": row["pos"]} for row in asked))
        call(
            [args.kiln, "--quiet", "mine", "--model", args.teacher, "--max-length", CUT,
             "--data", mining / "asked.jsonl", "--corpus", mining / "corpus.jsonl", "--top-k", 20, "--negatives", 3,
             "--percent-of-positive", 0, "--output", mining / "near.jsonl"]
        )
        near = read(mining / "near.jsonl")
        passages = list(dict.fromkeys(text for row in near for text in row["pos"] + row["neg"]))
        number = {text: f"d{n}" for n, text in enumerate(passages)}
        write(folder / name / "corpus.jsonl", ({"_id": number[text], "title": "", "text": text} for text in passages))
        write(folder / name / "queries.jsonl", ({"_id": f"q{n}", "text": row["query"]} for n, row in enumerate(near)))
        with written(folder / name / "qrels/test.tsv") as file:
            file.write("query-id\tcorpus-id\tscore\n")
            file.writelines(f"q{n}\t{number[row['pos'][0]]}\t1\n" for n, row in enumerate(near))
        texts += len(passages) + len(near)
        kept_out += [row["query"] for row in near]
    for name, path, count in (("stsb", "sts/stsbenchmark/dev", 120), ("sick", "sts/sick/dev", 100)):
        rows = drawn(columns(read(sets / f"{path}.jsonl"), PAIR), count, f"suite {name}")
        write(folder / name / "test.jsonl", rows)
        texts += 2 * len(rows)
        kept_out += [row[key] for row in rows for key in PAIR[:2]]
    for name, path, split in (("trec", "classification/trec_qc", "test"), ("emotion", "classification/emotion", "dev")):
        known = of_each(read(sets / path / "train.jsonl"), 10, f"suite {name} train")
        asked = drawn(columns(read(sets / path / f"{split}.jsonl"), LABELLED), 100, f"suite {name}")
        write(folder / name / "train.jsonl", known)
        write(folder / name / "test.jsonl", asked)
        texts += len(known) + len(asked)
        kept_out += [row["text"] for row in asked]
    for name, path in (("stackoverflow", "stackoverflow_titles"), ("newsgroups", "twenty_newsgroups_subjects")):
        rows = of_each(read(sets / "clustering" / path / "test.jsonl"), 7, f"suite {name}")
        write(folder / name / "test.jsonl", rows)
        texts += len(rows)
        kept_out += [row["text"] for row in rows]
    write(folder / "kept-out.jsonl", ({"text": text} for text in kept_out))
    say(f"the suite has {texts} texts")


# ------------------------------------------------------------------------------------------------ commands


def say(message):
    print(time.strftime("%H:%M:%S"), message, file=sys.stderr, flush=True)


class Failed(Exception):
    """A command that did not end well."""


def call(command, log=None, folder=None):
    """Runs a command to its end; what it prints, or an error with the end of what it said."""
    command = [str(part) for part in command]
    with open(log, "w") if log else contextlib.nullcontext(subprocess.PIPE) as errors:
        # In a session of its own: a Ctrl-C reaches it once, from here.
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder, start_new_session=True
        )
        try:
            output, said = process.communicate()
        except KeyboardInterrupt:
            # It saves what it has.
            process.send_signal(signal.SIGINT)
            process.communicate()
            raise
    if process.returncode:
        said = said if log is None else pathlib.Path(log).read_text()[-2000:]
        raise Failed(f"{' '.join(command[:6])} .. ended with {process.returncode}: {said[-2000:].strip()}")
    return output



# ------------------------------------------------------------------------------------------------ cells

SWEEPS = ["frame", "nv-embed", "mgh-ata", "anchor", "pooling-attn", "linq", "compression"]
TEACHER, MODEL, TWO_STAGE = "models/teacher", "models/smollm2", "models/two-stage"
CALIBRATED = ["--calibration", "data/calibration.jsonl", "--calibration-tokens", 8192]
# Cells that train nothing: what makes a model, if anything, and what is evaluated. Pruned models lose the latent block.
EVALUATED = {
    "minilm": ([], TEACHER, ["--max-length", CUT]),
    "plain-mean": ([], MODEL, ["--max-length", CUT, "--pooling", "mean"]),
    "plain-last-token": ([], MODEL, ["--max-length", CUT, "--pooling", "last_token"]),
    "two-stage-mean": ([], TWO_STAGE, ["--pooling", "mean"]),
    **{
        method: (
            ["prune", "--model", TWO_STAGE, "--method", method, "--pattern", "2:4", *CALIBRATED,
             "--output", f"models/{method}"],
            f"models/{method}", ["--pooling", "mean"],
        )
        for method in ("magnitude", "wanda", "sparsegpt")
    },
    **{
        f"distilled-{scheme}": (
            ["quantize", "--model", "models/sparsegpt-distilled", "--scheme", scheme, "--method", "gptq", *CALIBRATED,
             "--output", f"models/distilled-{scheme}"],
            f"models/distilled-{scheme}", [],
        )
        for scheme in ("int8:channel", "fp8-e4m3", "fp8-e5m2")
    },
}
# Cells that measure something else than the suite, and whose models they look at.
LOOKED_AT = {"layers": ["untrained-eos-causal", "eos-causal"], "levels": ["mean-bidirectional"]}
# What later cells start from or look at.
KEPT = ["two-stage", "sparsegpt-distilled", "mean-bidirectional", "untrained-eos-causal", "eos-causal"]


class Cell:
    """One thing to train or evaluate."""

    def __init__(self, name, changes=None):
        self.name, self.changes = name, changes

    def __repr__(self):
        return self.name


def everything(args):
    """All cells by name, and the claims, with the order in which cells are run."""
    cells = {name: Cell(name) for name in [*EVALUATED, *LOOKED_AT]}
    for sweep in SWEEPS:
        found = tomllib.loads((args.experiments / f"{sweep}.toml").read_text())
        for variant in found["variant"]:
            if variant["name"] in cells:
                fail(f"{sweep}.toml: the variant {variant['name']!r} is there twice")
            cells[variant["name"]] = Cell(variant["name"], found.get("set", []) + variant.get("set", []))
    found = tomllib.loads((args.experiments / "claims.toml").read_text())
    named = set(found["order"]) | {claim[side] for claim in found["claim"] for side in ("a", "b")}
    if wrong := sorted(named ^ set(cells)) or sorted(named - set(found["order"])):
        fail(f"claims.toml: order has to name every cell once; see {', '.join(wrong)}")
    return cells, found["claim"], found["order"]


def result_file(args, name, seed):
    return args.results / f"{name.replace(':', '-')}-{seed}.json"


def commands(args, cell, seed):
    """What makes a cell's model, if anything, and what scores it, as shells take them; none of what is looked at."""
    if cell.name in LOOKED_AT:
        return []
    if cell.changes is None:
        make, model, flags = EVALUATED[cell.name]
        return [shown(command) for command in (make, evaluation(model, flags)) if command]
    folder = f"runs/{cell.name}-{seed}"
    return [shown(training(cell, seed, folder, args)), shown(evaluation(f"{folder}/model", []))]


def by_other_settings(args, cell, seed):
    """Whether a result is there that other commands than today's made."""
    path = result_file(args, cell.name, seed)
    return path.exists() and json.loads(path.read_text()).get("commands", []) != commands(args, cell, seed)


def is_done(args, cell, seed):
    return result_file(args, cell.name, seed).exists() and not (args.again and by_other_settings(args, cell, seed))


def run(args):
    cells, claims, order = everything(args)
    order = [name for name in order if (not args.only or name in args.only) and name not in args.skip]
    if unknown := [name for name in [*args.only, *args.skip] if name not in cells]:
        fail(f"no cell {unknown[0]!r}; `list` names them")
    if not (args.work / "data/counts.json").exists():
        fail(f"{args.work}/data is not there; run `prepare` first")
    place(args)
    for seed in args.seeds:
        all_of(args, cells, order, seed)
    if args.largest:
        chosen = largest(args, claims, cells, args.seeds[0])
        say(f"the largest effects: {', '.join(claim['name'] for claim in chosen)}")
        again = list(dict.fromkeys(claim[side] for claim in chosen for side in "ab"))
        for seed in args.more:
            all_of(args, cells, again, seed)


def place(args):
    """Links in WORK to what the recipe names."""
    models = args.work / "models"
    models.mkdir(exist_ok=True)
    for name, target in (("smollm2", args.model), ("teacher", args.teacher)):
        link = models / name
        if link.is_symlink():
            link.unlink()
        link.symlink_to(target.resolve())


def all_of(args, cells, order, seed):
    failed = args.work / "failed"
    for name in order:
        # What trains nothing has no seed.
        if cells[name].changes is None and seed != args.seeds[0]:
            continue
        path = result_file(args, name, seed)
        known = is_done(args, cells[name], seed)
        if known and by_other_settings(args, cells[name], seed):
            say(f"{name}, seed {seed}: done, by other settings; --again runs it anew")
        if known and not (seed == args.seeds[0] and is_missed(args, cells, order, name)):
            continue
        say(f"{name}, seed {seed}" + (": its model again, of which others are made" if known else ""))
        start = time.monotonic()
        note = failed / path.name
        note.unlink(missing_ok=True)
        try:
            result = one(args, cells[name], seed)
        except (Failed, OSError, ValueError, KeyError) as error:
            say(f"{name}, seed {seed}: failed: {error}")
            with written(note) as file:
                json.dump({"cell": name, "seed": seed, "error": f"{type(error).__name__}: {error}"}, file, indent=1)
            continue
        if known:
            continue
        result["seconds"]["all"] = round(time.monotonic() - start)
        with written(path) as file:
            file.write(compact(result))
        mean = f": {result['mean']:.2f}" if "mean" in result else ""
        say(f"{name}, seed {seed}{mean} in {result['seconds']['all']} s")
    if notes := sorted(failed.glob("*.json")):
        say(f"failed, and tried again next time: {', '.join(note.stem for note in notes)}")


def is_missed(args, cells, order, name):
    """Whether a cell's model is gone that one without a result begins with or looks at."""
    if name not in KEPT or (args.work / "models" / name).exists():
        return False

    def needs(cell):
        begun_with = f"{cells[cell].changes} {EVALUATED.get(cell)}"
        return name in LOOKED_AT.get(cell, ()) or re.search(rf"models/{name}\b(?!-)", begun_with)

    return any(needs(cell) for cell in order if not is_done(args, cells[cell], args.seeds[0]))


def compact(result):
    """JSON with a line a field."""
    lines = (f" {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in result.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def kiln(args, *command, log=None):
    return call([args.kiln, "--quiet", "--json", *command], log=log, folder=args.work)


def one(args, cell, seed):
    """Trains or makes a cell's model, and scores it."""
    result = {"cell": cell.name, "seed": seed, "kiln": call([args.kiln, "--version"]).strip(), "commit": commit(), "processor": processor()}
    result["seconds"] = {}
    if cell.name not in LOOKED_AT:
        result["commands"] = commands(args, cell, seed)
    if cell.name == "layers":
        return result | layers(args)
    if cell.name == "levels":
        return result | levels(args)
    if cell.changes is None:
        make, model, flags = EVALUATED[cell.name]
        start = time.monotonic()
        if make:
            made(args, args.work / model, make)
        result["seconds"]["made"] = round(time.monotonic() - start)
        return result | scores(args, cell.name, seed, model, flags)
    folder = f"runs/{cell.name}-{seed}"
    train(args, args.work / folder, training(cell, seed, folder, args))
    points = [json.loads(line) for line in (args.work / folder / "metrics.jsonl").read_text().splitlines()]
    result["seconds"]["step"] = round(statistics.median(point["seconds"] for point in points), 2)
    result["seconds"]["training"] = round(sum(point["seconds"] for point in points))
    result["steps"] = len(points)
    # Means of ten steps.
    result["loss"] = [
        round(statistics.fmean(point["loss"] for point in points[at : at + 10]), 4) for at in range(0, len(points), 10)
    ]
    scored = [point for point in points if point.get("scores")]
    # nDCG@10 of the recipe's evaluation set, by stage and step.
    result["curve"] = [[point["stage"] + 1, point["step"], round(100 * point["scores"][0][1], 2)] for point in scored]
    # Of variants with `eval.suite`, the suite's mean of each kind too.
    along = [[point["stage"] + 1, point["step"], kind_means(point["scores"])] for point in scored]
    if any(means for _, _, means in along):
        result["along"] = along
    result |= scores(args, cell.name, seed, f"{folder}/model", [])
    if cell.name in KEPT and seed == args.seeds[0]:
        link = args.work / "models" / cell.name
        link.unlink(missing_ok=True)
        link.symlink_to((args.work / folder / "model").resolve())
    needed = cell.name in KEPT or args.keep
    for part in ("best", "adapter", "checkpoints", *([] if needed else ["model"])):
        shutil.rmtree(args.work / folder / part, ignore_errors=True)
    return result


def kind_means(scored):
    """The means of kinds among the scores of a step, in points."""
    return {name.removeprefix("mean "): round(100 * score, 2) for name, score in scored if name.startswith("mean ")}


def shown(command):
    """A command as a shell takes it, in WORK."""
    return shlex.join(["kiln", *map(str, command)])


def training(cell, seed, folder, args):
    changes = [f"seed={seed}", *cell.changes]
    if args.steps:
        # A look at whether all of it runs.
        recipe = tomllib.loads((args.experiments / "smollm2.toml").read_text())
        for stage in recipe["stage"]:
            changes += [f"stage.{stage['name']}.steps={args.steps}", f"stage.{stage['name']}.warmup=0"]
    sets = [part for change in changes for part in ("--set", change)]
    return ["train", "--recipe", "smollm2.toml", "--data-dir", ".", "--output", folder, *sets]


def made(args, folder, command):
    """Makes a model, where it is not there by this command."""
    note = folder.with_name(folder.name + ".command")
    if folder.exists() and note.exists() and note.read_text() == shown(command):
        return
    shutil.rmtree(folder, ignore_errors=True)
    kiln(args, *command)
    note.write_text(shown(command))


def train(args, folder, command):
    """Trains to the end, going on from a checkpoint where there is one."""
    done = folder / "done"
    if done.exists() and done.read_text() == shown(command):
        return
    # A run of other settings is not gone on with.
    if done.exists():
        shutil.rmtree(folder)
    for name in ("smollm2.toml", "suite.toml"):
        shutil.copy(args.experiments / name, args.work / name)
    going_on = [["--resume"]] if any(folder.glob("checkpoints/*")) else []
    for more in [*going_on, ["--overwrite"]]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if more == ["--overwrite"]:
                shutil.rmtree(folder)
            kiln(args, *command, "--checkpoint-every", 50, "--keep", 1, *more, log=args.work / "train.log")
            done.write_text(shown(command))
            return
        except Failed as error:
            if more == ["--overwrite"]:
                raise
            say(f"{folder.name}: does not go on from its checkpoint ({error}); from the start")


def evaluation(model, flags):
    return ["eval", "--model", model, "--suite", "suite.toml", "--data", "data/suite", *flags]


def scores(args, name, seed, model, flags):
    """The suite's scores in points, and what they are made of."""
    output = args.work / "eval" / f"{name}-{seed}"
    shutil.rmtree(output, ignore_errors=True)
    shutil.copy(args.experiments / "suite.toml", args.work / "suite.toml")
    start = time.monotonic()
    found = json.loads(kiln(args, *evaluation(model, flags), "--no-cache", "--output", output))
    if found["failed"] or found["skipped"]:
        raise Failed(f"tasks without a score: {found['failed'] + found['skipped']}")
    tasks = {task["task"]: task["main_score"] for task in found["tasks"]}
    if None in tasks.values():
        raise Failed(f"a score is not defined: {tasks}")
    types = {task["task"]: task["type"] for task in found["tasks"]}
    parts = {}
    for path in output.glob("*/*/parts/*.json"):
        kept = json.loads(path.read_text())
        lists = [kept["parts"][key] for key in ("values", "found", "gold") if key in kept["parts"]]
        parts[kept["task"]["name"]] = [[round(value, 4) for value in one] for one in lists]
    say(f"{name}: the suite in {time.monotonic() - start:.0f} s")
    by_type = by_types(tasks, types)
    return {
        "mean": round(statistics.fmean(by_type.values()), 3),
        "types": {kind: round(score, 3) for kind, score in by_type.items()},
        "tasks": {task: round(100 * score, 3) for task, score in tasks.items()},
        "kinds": types,
        "parts": parts,
    }


def by_types(tasks, types):
    """Means of the kinds of tasks, in points."""
    kinds = collections.defaultdict(list)
    for task, score in tasks.items():
        kinds[types[task]].append(100 * score)
    return {kind: statistics.fmean(found) for kind, found in kinds.items()}


def layers(args):
    """Scores of the layers and their correlations, before and after training (Pooling and Attention, figures 1, 2)."""
    found = {}
    for model in ("untrained-eos-causal", "eos-causal"):
        tasks = {"sts": ("sts", "data/suite/stsb"), "retrieval": ("retrieval", "data/suite/squad")}
        for name, (kind, path) in tasks.items():
            output = args.work / "analysis" / f"{model}-{name}"
            shutil.rmtree(output, ignore_errors=True)
            texts = ["--labelled", "data/suite/trec/test.jsonl", "--layer-state", "last_token"]
            kiln(args, "analyze", "--model", f"models/{model}", "--only", "layers,layer-scores", "--task", kind,
                 "--data", path, "--split", "test", *texts, "--output", output)
            scored = json.loads((output / "layer-scores.json").read_text())
            found.setdefault(model, {})[name] = [round(100 * value, 2) for value in scored["layers"]]
        table = json.loads((output / "layers.json").read_text())["spearman"]
        # Of layers so far apart, 1 being neighbours.
        found[model]["correlation"] = {}
        for apart in (1, 5, 10, 20):
            pairs = [table[at][at + apart] for at in range(1, len(table) - apart)]
            found[model]["correlation"][apart] = round(statistics.fmean(pairs), 3)
    return {"layers": found}


def levels(args):
    """How near each level of negatives is to a model that saw none of them (Negative Matters, table 4)."""
    found = kiln(args, "granularity", "--model", "models/mean-bidirectional", "--data", "data/levels.jsonl")
    return {"levels": json.loads(found)}


def commit():
    """Of this checkout, which KILN is to be built of."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        command = ["git", "-C", pathlib.Path(__file__).parent, "describe", "--always", "--dirty"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return None


def processor():
    with contextlib.suppress(OSError):
        if name := re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text()):
            return f"{name[1]}, {len(os.sched_getaffinity(0))} cores"
    return None


# ------------------------------------------------------------------------------------------------ the table


def opened(args):
    """Results by cell: one a seed."""
    found = collections.defaultdict(dict)
    for path in sorted(args.results.glob("*.json")):
        result = json.loads(path.read_text())
        found[result["cell"]][result["seed"]] = result
    return found


def largest(args, claims, cells, seed):
    """The comparisons of trained cells with the largest differences of means."""
    found = opened(args)
    sizes = []
    for claim in claims:
        pair = [found[claim[side]].get(seed, {}).get("mean") for side in "ab"]
        trained = [cells[claim[side]].changes is not None and "untrained" not in claim[side] for side in "ab"]
        if None not in pair and all(trained):
            sizes.append((abs(pair[0] - pair[1]), claim))
    sizes.sort(key=lambda one: -one[0])
    return [claim for _, claim in sizes[: args.largest]]


def ranks(values):
    order = sorted(range(len(values)), key=values.__getitem__)
    result, at = [0.0] * len(values), 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for place in order[at : end + 1]:
            result[place] = (at + end) / 2
        at = end + 1
    return result


def score(parts, rows):
    """A task's score on some of its rows: a mean, or Spearman's correlation."""
    columns = [[column[row] for row in rows] for column in parts]
    if len(columns) == 1:
        return statistics.fmean(columns[0])
    try:
        return statistics.correlation(*map(ranks, columns))
    except statistics.StatisticsError:
        return 0.0


def interval(a, b, draws=400):
    """90 % of the differences of the suite's means under a paired bootstrap of queries, pairs and texts; of clustering,
    of its ten k-means runs, which are not texts."""
    random_rows, differences = random.Random(SEED), []
    for _ in range(draws):
        means = ({}, {})
        for task, parts in a["parts"].items():
            size = len(parts[0])
            rows = [random_rows.randrange(size) for _ in range(size)]
            for side, of in enumerate((parts, b["parts"][task])):
                means[side][task] = score(of, rows)
        first, second = (statistics.fmean(by_types(mean, a["kinds"]).values()) for mean in means)
        differences.append(first - second)
    differences.sort()
    return differences[round(0.05 * draws)], differences[round(0.95 * draws) - 1]


KINDS = {"Retrieval": "retr.", "STS": "STS", "Classification": "class.", "Clustering": "clust."}


def table(args):
    cells, claims, order = everything(args)
    found = opened(args)
    print(f"| cell | seeds | mean | {' | '.join(KINDS.values())} |\n|---|---|---|{'---|' * len(KINDS)}")
    for name in order:
        if not (seeds := [one for one in found[name].values() if "mean" in one]):
            continue
        numbers = ", ".join(str(one["seed"]) for one in seeds)
        row = " | ".join(f"{statistics.fmean(one['types'][kind] for one in seeds):.1f}" for kind in KINDS)
        print(f"| {name} | {numbers} | **{spread([one['mean'] for one in seeds])}** | {row} |")
    kinds = ", ".join(KINDS.values())
    print(f"\n| claim | what the paper found | what came out here | 90 % | {kinds} | agrees |\n|---|---|---|---|---|---|")
    for claim in claims:
        shared = sorted(set(found[claim["a"]]) & set(found[claim["b"]]))
        said = f"| {claim['name']} ({claim['source']}) | {claim['found']} "
        if not shared:
            print(said + "| not run | | | |")
            continue
        pairs = [(found[claim["a"]][seed], found[claim["b"]][seed]) for seed in shared]
        differences = [a["mean"] - b["mean"] for a, b in pairs]
        low, high = interval(*pairs[0])
        kinds = [statistics.fmean(a["types"][kind] - b["types"][kind] for a, b in pairs) for kind in KINDS]
        values = " against ".join(f"{statistics.fmean(pair[side]['mean'] for pair in pairs):.1f}" for side in (0, 1))
        kinds = ", ".join(f"{kind:+.1f}" for kind in kinds)
        verdict = agrees(claim, differences, low, high)
        print(f"{said}| {spread(differences, '+')} ({values}) | {low:+.1f} to {high:+.1f} | {kinds} | {verdict} |")
    for name, how in (("reconstruction", "with stage I"), ("no-reconstruction", "without")):
        for seed, result in sorted(found[name].items()):
            last = max(stage for stage, _, _ in result["curve"])
            points = ", ".join(f"{step}: {value:.1f}" for stage, step, value in result["curve"] if stage == last)
            print(f"\nnDCG@10 of squad by contrastive step, {how}, seed {seed}: {points}")
    for name in order:
        for seed, result in sorted(found[name].items()):
            if along := result.get("along"):
                points = ", ".join(f"{stage}/{step}: {along_mean(means)}" for stage, step, means in along)
                print(f"\n{name}, seed {seed}, mean ({', '.join(KINDS.values())}) by stage/step: {points}")
    for name in LOOKED_AT:
        for result in found[name].values():
            print(f"\n{name}: {json.dumps(result[name])}")


def along_mean(means):
    kinds = ", ".join(f"{means[kind]:.1f}" for kind in KINDS)
    return f"{statistics.fmean(means.values()):.1f} ({kinds})"


def spread(values, sign=""):
    text = f"{statistics.fmean(values):{sign}.1f}"
    return text if len(values) == 1 else f"{text} ± {statistics.stdev(values):.1f}"


def agrees(claim, differences, low, high):
    """Whether the sign is the paper's; what is within the noise of the suite says neither."""
    if "sign" not in claim:
        return ""
    sign = math.copysign(1, statistics.fmean(differences))
    same_in_all = len({math.copysign(1, one) for one in differences}) == 1
    if low <= 0 <= high or not same_in_all:
        return "within the noise"
    return "yes" if sign == claim["sign"] else "no"


def listed(args):
    cells, claims, order = everything(args)
    done = opened(args)
    for name in order:
        changes = cells[name].changes
        others = any(by_other_settings(args, cells[name], seed) for seed in done[name])
        state = "done, by other settings" if others else "done" if done[name] else ""
        print(f"{name:<30} {state:<24} {'' if changes is None else '; '.join(changes)[:150]}".rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["prepare", "run", "list", "table"])
    path = pathlib.Path

    def names(text):
        return text.split(",")

    def seeds(text):
        return [int(seed) for seed in names(text)]

    parser.add_argument("--kiln", type=path, default=path("target/release/kiln"), metavar="BINARY")
    parser.add_argument("--datasets", type=path, metavar="FOLDER")
    parser.add_argument("--model", type=path, metavar="FOLDER", help="SmolLM2-135M-Instruct")
    parser.add_argument("--teacher", type=path, metavar="FOLDER", help="all-MiniLM-L6-v2")
    parser.add_argument("--work", type=path, metavar="FOLDER", help="where data, models and runs lie")
    parser.add_argument("--experiments", type=path, default=HERE, metavar="FOLDER", help="recipe, sweeps and suite")
    parser.add_argument("--results", type=path, metavar="FOLDER", help="where results lie, by default in --experiments")
    parser.add_argument("--seeds", type=seeds, default=[1])
    parser.add_argument("--only", type=names, default=[], metavar="CELLS")
    parser.add_argument("--skip", type=names, default=[], metavar="CELLS")
    parser.add_argument("--largest", type=int, default=0, metavar="N", help="then the N largest effects, with --more")
    parser.add_argument("--more", type=seeds, default=[2, 3], metavar="SEEDS")
    parser.add_argument("--again", action="store_true", help="run anew what was done by other settings than today's")
    parser.add_argument("--steps", type=int, metavar="N", help="so many steps in every stage, to see that all runs")
    parser.add_argument("--keep", action="store_true", help="keep every model, about 1 GB a cell")
    args = parser.parse_args()
    args.results = args.results or args.experiments / "results"
    needed = {"prepare": ("datasets", "teacher", "work"), "run": ("model", "teacher", "work")}.get(args.what, ())
    if missing := [name for name in needed if getattr(args, name) is None]:
        parser.error(f"{args.what} needs --{missing[0]}")
    if needed:
        args.kiln, args.work = args.kiln.resolve(), args.work.resolve()
        args.teacher = args.teacher.resolve()
        if shutil.which(args.kiln) is None:
            parser.error(f"{args.kiln}: no such program; build it, or name it with --kiln")
        args.work.mkdir(parents=True, exist_ok=True)
    # A kill is answered as Ctrl-C is: the command saves what it has, and nothing is left half written.
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    try:
        {"prepare": prepare, "run": run, "list": listed, "table": table}[args.what](args)
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on")
    except Failed as error:
        fail(error)


if __name__ == "__main__":
    main()
