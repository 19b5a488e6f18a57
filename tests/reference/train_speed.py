"""How fast training is beside PyTorch + peft: the same texts, batches, loss, adapters and optimizer, in one run.

    python tests/reference/train_speed.py --model MODEL [--kiln target/release/kiln] [--mode lora|full] \\
        [--texts mixed64|equal128|equalN] [--batch N] [--checkpoint-blocks] [--device cpu|cuda] \\
        [--steps N] [--warm-up N] [--threads N] [--engines NAMES] [--json]

MODEL is a Hugging Face folder with a tokenizer.json (SmolLM2-135M, all-MiniLM-L6-v2). The engines run one after the
other, each in a process of its own: PyTorch in f32 and under autocast in bf16, `kiln train` in f32 and in bf16.
Needs torch, transformers and peft (`tests/setup.sh python`), and Linux for the peak memory.

Every step is the same batch of queries and as many positives (32), so that steps differ by noise alone. What a step is: the
texts become tokens, vectors (mean pooling), InfoNCE over cosines with in-batch negatives, gradients clipped to norm 1,
and a step of AdamW without decay; `lora` trains rank 16, alpha 32 on all linear layers, `full` every parameter; nothing
drops out. Loading and the first `--warm-up` steps are not counted. The run fails where the two sides do not do the same
work: other tokens, other numbers of trained parameters, or first losses in f32 that are more than 1e-3 apart.

Texts are made up with a fixed seed. `mixed64`: short queries, longer positives, cut to 64 tokens, about 28 on average.
`equal128`: all cut to exactly 128 (`equalN`: to N).

On a GPU PyTorch has the model in the precision that its engine names, with sdpa attention, and `bf16` keeps what LoRA
trains in f32; the peak of both is the process's memory on the device, by `nvidia-smi`: with the context, and with what an
allocator keeps though it is free.
"""

import argparse
import json
import math
import os
import pathlib
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

TEMPERATURE = 0.05
RANK, ALPHA = 16, 32
LEARNING_RATE = {"lora": 1e-4, "full": 2e-5}
CLIP = 1.0
CLOSE = 1e-3
ENGINES = ["torch-f32", "torch-bf16", "kiln-f32", "kiln-bf16"]

PLACES = "harbour village orchard library market bridge valley workshop garden station island museum".split()
PEOPLE = "baker teacher sailor doctor farmer painter pilot mason singer clerk nurse miller".split()
THINGS = "lantern basket engine letter kettle ladder compass barrel blanket mirror wagon clock".split()
VERBS = "repairs paints carries sells hides finds measures cleans borrows lifts opens weighs".split()
KINDS = "old heavy small broken silver wooden quiet bright narrow empty cold painted".split()
TIMES = "before dawn;after the storm;in early spring;on market days;once a year;during the long winter".split(";")
QUESTIONS = "where does;why does;when does;how often does;with whom does;how does".split(";")


# ------------------------------------------------------------------------------------------------ the texts


def clause(draw, person, thing):
    return (
        f"the {person} of the {draw.choice(PLACES)} {draw.choice(VERBS)} the {draw.choice(KINDS)} {thing} "
        f"{draw.choice(TIMES)}"
    )


def of_length(tokenizer, length, first, more):
    """A text of at least so many tokens: words of `first`, then of as many `more` as it takes."""
    words, count = first.split(), 0
    while True:
        count += 1
        text = " ".join(words[:count])
        if len(tokenizer.encode(text).ids) >= length:
            return text
        if count == len(words):
            words += more().split()


def made_up(kind, batch, tokenizer):
    """The batch: rows with `query` and `pos`, and the length in tokens that texts are cut to."""
    draw = random.Random(64)
    equal, cut = kind.startswith("equal"), int(kind.removeprefix("mixed").removeprefix("equal"))
    pairs = [(person, thing) for person in PEOPLE for thing in THINGS]
    rows = []
    for person, thing in draw.sample(pairs, batch):
        if equal:
            lengths = [cut + 1, cut + 1]
        else:
            # Questions are short; some passages are longer than the cut.
            query = min(20, max(7, draw.lognormvariate(math.log(13), 0.3)))
            lengths = [round(query), round(max(12, draw.lognormvariate(math.log(42), 0.6)))]

        def more():
            return "and " + clause(draw, draw.choice(PEOPLE), draw.choice(THINGS))

        query = f"{draw.choice(QUESTIONS)} the {draw.choice(KINDS)} {person} carry the {thing} to the {draw.choice(PLACES)}"
        rows.append(
            {
                "query": of_length(tokenizer, lengths[0], query, more),
                "pos": [of_length(tokenizer, lengths[1], clause(draw, person, thing), more)],
            }
        )
    return rows, cut


# ------------------------------------------------------------------------------------------------ PyTorch


def torch_side(precision, job):
    """Trains with PyTorch + peft in this process and prints what it measured."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    job = json.loads(pathlib.Path(job).read_text())
    torch.manual_seed(1)
    torch.set_num_threads(job["threads"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    tokenizer.padding_side = "right"
    config = AutoConfig.from_pretrained(job["model"])
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    # The pooler has no share in mean pooling.
    without = {"add_pooling_layer": False} if config.model_type == "bert" else {}
    on_gpu = job["device"] == "cuda"
    half = on_gpu and precision == "bf16" and job["mode"] == "lora"
    dtype = torch.bfloat16 if half else torch.float32
    model = AutoModel.from_pretrained(job["model"], config=config, dtype=dtype, **without)
    if job["mode"] == "lora":
        from peft import LoraConfig, get_peft_model

        lora = LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules="all-linear")
        model = get_peft_model(model, lora)
    if job["checkpoint_blocks"]:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable()
    model.to(job["device"]).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE[job["mode"]], weight_decay=0.0, fused=True)
    columns = [[row["query"] for row in job["rows"]], [row["pos"][0] for row in job["rows"]]]

    def vectors(texts):
        batch = tokenizer(texts, padding=True, truncation=True, max_length=job["cut"], return_tensors="pt")
        batch = batch.to(job["device"])
        with torch.autocast(job["device"], torch.bfloat16, enabled=precision == "bf16"):
            hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None].float()
        pooled = (hidden.float() * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(pooled, dim=1), int(mask.sum())

    seconds, losses = [], []
    for _ in range(job["warm_up"] + job["steps"]):
        start = time.perf_counter()
        # Queries and positives apart, as sentence-transformers does: less padding.
        (queries, count), (positives, more) = map(vectors, columns)
        scores = queries @ positives.T / TEMPERATURE
        loss = torch.nn.functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, CLIP)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    result = {"seconds": seconds, "losses": losses, "tokens": count + more, "peak_mb": peak_mb("self")}
    print(json.dumps(result | {"trained": sum(parameter.numel() for parameter in trained)}))


def peak_mb(process):
    """Peak resident memory of a process so far; None once it has ended."""
    try:
        status = pathlib.Path(f"/proc/{process}/status").read_text()
    except OSError:
        return None
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(peak[1]) // 1024 if peak else None


def gpu_mb(process):
    """Memory that a process has on the GPU."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return None
    of = {int(pid): int(used) for pid, used in (line.split(",") for line in lines) if used.strip().isdigit()}
    return of.get(process, sum(of.values()) or None)


def run_torch(precision, job, folder):
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    command = [sys.executable, __file__, "--torch", precision, str(path)]
    with open(folder / "torch-stdout", "w+") as stdout, open(folder / "torch-stderr", "w+") as stderr:
        run = subprocess.Popen(command, env=environment(job), stdout=stdout, stderr=stderr)
        on_gpu, peak = job["device"] == "cuda", None
        # As Kiln is asked.
        while run.poll() is None:
            peak = max(gpu_mb(run.pid) or 0, peak or 0) or None if on_gpu else None
            time.sleep(0.05)
        stdout.seek(0)
        stderr.seek(0)
        if run.returncode:
            sys.exit(f"PyTorch {precision} failed:\n{stderr.read()[-2000:]}")
        result = json.loads(stdout.read().splitlines()[-1])
    return result | {"peak_mb": peak} if on_gpu else result


def environment(job):
    threads = str(job["threads"])
    return os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "RAYON_NUM_THREADS": threads}


# ------------------------------------------------------------------------------------------------ Kiln

RECIPE = """name = "train-speed"
seed = 1

[model]
base = {model}
pooling = {{ mode = "mean" }}
max_length = {cut}
{lora}
[compute]
precision = "{precision}"
checkpoint_blocks = {checkpoint_blocks}

[[stage]]
name = "speed"
data = ["rows.jsonl"]
steps = {steps}
batch_size = {batch}
hard_negatives = 0
lr = {lr:e}
warmup = 0
schedule = "constant"
clip_norm = {clip}
loss = {{ temperature = {temperature}, in_batch = true }}
"""


def run_kiln(precision, job, folder):
    lora = f'lora = {{ rank = {RANK}, alpha = {ALPHA}, dropout = 0.0, targets = ["all-linear"] }}\n'
    steps = job["warm_up"] + job["steps"]
    recipe = folder / f"{precision}.toml"
    recipe.write_text(
        RECIPE.format(
            model=json.dumps(str(pathlib.Path(job["model"]).resolve())), cut=job["cut"], precision=precision,
            checkpoint_blocks=str(job["checkpoint_blocks"]).lower(),
            lora=lora if job["mode"] == "lora" else "", steps=steps, batch=len(job["rows"]), lr=LEARNING_RATE[job["mode"]],
            clip=CLIP, temperature=TEMPERATURE,
        )
    )
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in job["rows"]))
    out = folder / precision
    kiln = [job["kiln"], "--device", job["device"], "--json", "--quiet", "train", "--recipe", str(recipe)]
    dry = subprocess.run([*kiln, "--dry-run"], env=environment(job), capture_output=True, text=True)
    if dry.returncode:
        sys.exit(f"kiln train --dry-run failed:\n{dry.stderr[-2000:]}")
    trained = json.loads(dry.stdout)["stages"][0]["trained"]

    with open(folder / "stderr", "w+") as stderr:
        # A checkpoint only after the last step, with the model: neither is part of a step.
        run = subprocess.Popen(
            [*kiln, "--output", str(out), "--checkpoint-every", str(steps)],
            env=environment(job), stdout=subprocess.DEVNULL, stderr=stderr,
        )
        metrics, peak = out / "metrics.jsonl", None
        while run.poll() is None:
            now = (gpu_mb if job["device"] == "cuda" else peak_mb)(run.pid)
            # Memory of the training itself: what is saved afterwards is not counted.
            if metrics.exists() and metrics.read_text().count("\n") >= steps:
                break
            peak = max(now or 0, peak or 0) or None
            time.sleep(0.05)
        if run.wait():
            stderr.seek(0)
            sys.exit(f"kiln train failed:\n{stderr.read()[-2000:]}")
    points = [json.loads(line) for line in metrics.read_text().splitlines()]
    return {
        "seconds": [point["seconds"] for point in points],
        "losses": [point["loss"] for point in points],
        "tokens": points[0]["tokens"],
        "peak_mb": peak,
        "trained": trained,
    }


# ------------------------------------------------------------------------------------------------ the comparison


def compare(job, measured):
    """The lines of the table, once both sides have been seen to do the same work."""
    wrong = []
    for what in ("tokens", "trained"):
        counts = {engine: result[what] for engine, result in measured.items()}
        if len(set(counts.values())) > 1:
            wrong.append(f"{what} differ: {counts}")
    if "torch-f32" in measured and "kiln-f32" in measured:
        first = [measured[engine]["losses"][0] for engine in ("torch-f32", "kiln-f32")]
        if not abs(first[0] - first[1]) <= CLOSE:
            wrong.append(f"first losses in f32 differ by more than {CLOSE}: PyTorch {first[0]:.6f}, Kiln {first[1]:.6f}")
    if wrong:
        sys.exit("the engines did not do the same work: " + "; ".join(wrong))
    step = {engine: statistics.median(result["seconds"][job["warm_up"] :]) for engine, result in measured.items()}
    return [
        {
            "engine": engine,
            "seconds_per_step": step[engine],
            "tokens_per_second": result["tokens"] / step[engine],
            "peak_mb": result["peak_mb"],
            "ratio_to_torch_bf16": step["torch-bf16"] / step[engine] if "torch-bf16" in step else None,
            "losses": result["losses"],
            "seconds": result["seconds"],
        }
        for engine, result in measured.items()
    ]


def processor():
    try:
        name = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    except OSError:
        name = None
    return name[1] if name else platform.processor() or platform.machine()


def versions():
    from importlib.metadata import PackageNotFoundError, version

    known = {}
    for package in ("torch", "transformers", "peft"):
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            known[package] = None
    return known


def main():
    if sys.argv[1:2] == ["--torch"]:
        return torch_side(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, metavar="FOLDER")
    parser.add_argument("--kiln", default="target/release/kiln", metavar="BINARY")
    parser.add_argument("--mode", choices=["lora", "full"], default="lora")
    parser.add_argument("--texts", default="mixed64", metavar="KIND", help="mixed64, equal128 or another equalN")
    parser.add_argument("--batch", type=int, default=32, metavar="N", help="queries, and as many positives [default: 32]")
    parser.add_argument("--checkpoint-blocks", action="store_true", help="keep a block's input alone for the backward pass")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="measured steps")
    parser.add_argument("--warm-up", type=int, default=2, metavar="N", help="steps before them")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--engines", default=",".join(ENGINES), metavar="NAMES", help="which, separated by commas")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    engines = args.engines.split(",")
    if unknown := [engine for engine in engines if engine not in ENGINES]:
        parser.error(f"no engine {unknown[0]!r}; there are {', '.join(ENGINES)}")
    if not re.fullmatch("(mixed|equal)[1-9][0-9]*", args.texts):
        parser.error(f"--texts is mixedN or equalN, not {args.texts!r}")
    if not 2 <= args.batch <= len(PEOPLE) * len(THINGS):
        parser.error(f"--batch must be from 2 to {len(PEOPLE) * len(THINGS)}")
    if args.steps < 1 or args.warm_up < 0 or args.threads < 1:
        parser.error("--steps and --threads must be at least 1, --warm-up at least 0")

    # Neither torch nor transformers here: this process stays small beside the ones it measures.
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{args.model}/tokenizer.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    rows, cut = made_up(args.texts, args.batch, tokenizer)
    job = {
        "model": args.model, "kiln": args.kiln, "mode": args.mode, "rows": rows, "cut": cut, "steps": args.steps,
        "warm_up": args.warm_up, "threads": args.threads, "device": args.device,
        "checkpoint_blocks": args.checkpoint_blocks,
    }
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        for engine in engines:
            side, precision = engine.split("-")
            print(f"{engine} ...", file=sys.stderr, flush=True)
            measured[engine] = (run_torch if side == "torch" else run_kiln)(precision, job, pathlib.Path(folder))
    lines = compare(job, measured)
    first = next(iter(measured.values()))
    result = {
        "model": pathlib.Path(args.model).name, "mode": args.mode, "texts": args.texts, "batch": args.batch, "device": args.device,
        "checkpoint_blocks": args.checkpoint_blocks,
        "tokens": first["tokens"], "trained_parameters": first["trained"], "warm_up": args.warm_up, "steps": args.steps,
        "threads": args.threads, "processor": processor(), "versions": versions(), "engines": lines,
    }
    if args.json:
        print(json.dumps(result, indent=2))
        return
    print(
        f"{result['model']}, {args.mode} ({first['trained']:,} parameters train), {args.texts}: {args.batch} queries and "
        f"as many positives, {first['tokens']:,} tokens, on {args.threads} cores of {result['processor']}"
    )
    print(f"{'engine':<11} {'s/step':>8} {'tokens/s':>9} {'peak MB':>8} {'x PyTorch bf16':>15}   losses")
    for line in lines:
        ratio = line["ratio_to_torch_bf16"]
        ratio = "" if ratio is None else f"{ratio:.2f}x"
        losses = " ".join(f"{loss:.4f}" for loss in line["losses"])
        print(
            f"{line['engine']:<11} {line['seconds_per_step']:>8.3f} {line['tokens_per_second']:>9.0f} "
            f"{line['peak_mb'] or 0:>8} {ratio:>15}   {losses}"
        )


if __name__ == "__main__":
    main()
