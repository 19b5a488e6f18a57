#!/usr/bin/env python3
"""The parts of README.md, one after the other: run.sh calls it. Each part's results are a line of results.jsonl as soon
as they are there; report.md is written of them at the end. With --kernels only what has Kiln compile: pack.sh keeps it."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import traceback

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WEIGHTS = ("f32", "bf16", "int8", "int4")


class Run:
    """What the parts share: sizes, time left, and where results go."""

    def __init__(self, args):
        self.args, self.work, self.rehearse = args, pathlib.Path(args.work), args.rehearse
        # Where PyTorch makes models, and computes beside Kiln.
        self.torch_device = "cpu" if args.rehearse or args.kernels else "cuda"
        self.ends = time.monotonic() + 60 * args.minutes
        self.results = open(pathlib.Path(args.out) / "results.jsonl", "w", encoding="utf-8")
        self.lines = []

    def left(self):
        return self.ends - time.monotonic()

    def say(self, part, **found):
        line = {"part": part, **found}
        self.lines.append(line)
        self.results.write(json.dumps(line) + "\n")
        self.results.flush()
        print(json.dumps(line), flush=True)

    def kiln(self, *arguments, device="cuda:0"):
        """Runs the command; its standard output and the seconds it took."""
        start = time.monotonic()
        done = subprocess.run(
            [self.args.kiln, *map(str, arguments), "--device", device, "--quiet"], capture_output=True, text=True,
            timeout=max(10, self.left()), check=False,
        )
        if done.returncode:
            raise RuntimeError(f"kiln {arguments[0]}: {done.stderr[-1500:]}")
        return done.stdout, time.monotonic() - start

    def vectors(self, model, texts, *more, device="cuda:0"):
        output = self.work / "vectors.npy"
        _, seconds = self.kiln("embed", "--model", model, "--input", texts, "--output", output, *more, device=device)
        return np.load(output), seconds


def lines_of(path, count, words, seed=1):
    """A file of made-up texts of so many words."""
    draw = np.random.default_rng(seed)
    known = [f"{a}{b}" for a in ("ba", "ko", "mi", "ter", "lun", "sa", "ri", "po") for b in ("n", "ra", "dor", "lis", "ve", "mo", "ta", "s")]
    path.write_text("".join(" ".join(draw.choice(known, words)) + "\n" for _ in range(count)))
    return path


# ------------------------------------------------------------------------------------------------ parts


def machine(run):
    import torch
    import transformers

    smi = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        card = subprocess.run(smi, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        card = f"nvidia-smi: {error}"
    devices = subprocess.run([run.args.kiln, "devices", "--json"], capture_output=True, text=True, check=False)
    run.say("machine", card=card, torch=torch.__version__, transformers=transformers.__version__, cuda_path=os.environ.get("CUDA_PATH"),
            devices=json.loads(devices.stdout) if devices.returncode == 0 else devices.stderr)


def few_texts(run):
    return lines_of(run.work / "few.txt", 2 if run.rehearse else 64, 20)


def numbers(run):
    texts = few_texts(run)
    for weights in WEIGHTS:
        cpu, _ = run.vectors(run.args.mini, texts, "--weights", weights, device="cpu")
        gpu, first = run.vectors(run.args.mini, texts, "--weights", weights)
        _, second = run.vectors(run.args.mini, texts, "--weights", weights)
        run.say("numbers", weights=weights, smallest_cosine=float((cpu * gpu).sum(1).min()), first_start_s=round(first, 2), second_start_s=round(second, 2),
                compile_s=round(first - second, 2))


def parity(run):
    if not pathlib.Path(run.args.parity).exists():
        run.say("parity", left_out="no tests of numbers were packed")
        return
    select = ["cuda", "--test-threads", "4"]
    if run.rehearse:
        select = ["losses::cuda", "--test-threads", "1"]
    done = subprocess.run([run.args.parity, *select], capture_output=True, text=True, timeout=min(240, run.left()), check=False,
                          cwd=ROOT / "tests")
    said = done.stdout.splitlines()
    failed = sorted({line.split()[1] for line in said if line.startswith("test ") and line.endswith("FAILED")})
    panics = [line for line in done.stdout.splitlines() + done.stderr.splitlines() if "panicked" in line][:10]
    run.say("parity", summary=next((line for line in said if line.startswith("test result")), done.stderr[-500:]), failed=failed, panics=panics)


def ceilings(run):
    import torch

    if run.rehearse:
        run.say("ceilings", left_out="a rehearsal has no card")
        return

    def seconds(work):
        for _ in range(3):
            work()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(10):
            work()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e4

    big = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    to = torch.empty_like(big)
    found = {"copy_tb_s": 2 * big.numel() / seconds(lambda: to.copy_(big)) / 1e12}
    del big, to
    for name, dtype in (("bf16", torch.bfloat16), ("tf32", torch.float32)):
        torch.backends.cuda.matmul.allow_tf32 = True
        a = torch.randn(8192, 8192, dtype=dtype, device="cuda")
        found[f"{name}_tflops"] = 2 * 8192**3 / seconds(lambda a=a: a @ a) / 1e12
    run.say("ceilings", **{name: round(value, 2) for name, value in found.items()})


def product_lines(run, most):
    """What the probe says of each product, and why it says no more; it has so many seconds."""
    shape = ["64", "96", "1", "8"] if run.rehearse else []
    path = run.work / "products.jsonl"
    with open(path, "w", encoding="utf-8") as lines:
        try:
            done = subprocess.run([run.args.products, *shape], stdout=lines, stderr=subprocess.PIPE, text=True, timeout=most, check=False)
            failed = done.stderr[-1500:] or f"exit status {done.returncode}" if done.returncode else None
        except subprocess.TimeoutExpired:
            failed = "no time was left for the rest"
    # The last line may be half a line.
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")], failed


def products(run):
    if not pathlib.Path(run.args.products).exists():
        run.say("products", left_out="no probe was packed")
        return
    most = next((line for line in run.lines if "copy_tb_s" in line), None)
    lines, failed = product_lines(run, max(10, min(90, run.left())))
    for line in lines:
        if most:
            # An f32 product's numbers are TF32's.
            peak = most["tf32_tflops" if line["weights"] == "f32" else "bf16_tflops"]
            line |= {"share_of_copy": round(line["gb_s"] / 1e3 / most["copy_tb_s"], 4), "share_of_peak": round(line["gflops"] / 1e3 / peak, 4)}
        run.say("products", **line)
    if failed:
        run.say("products", failed=failed)


def tokenizer(folder, special):
    """A word-piece tokenizer for made-up texts, made here."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    letters = lines_of(folder / "letters.txt", 400, 30, seed=9)
    made = Tokenizer(models.BPE(unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    made.train([str(letters)], trainer)
    if special:
        ids = {token: made.token_to_id(token) for token in ("[CLS]", "[SEP]")}
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=list(ids.items())
        )
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
        "model_max_length": 512,
    }))


def model(run, name, kind, layers, hidden, heads, keys=None, inner=None, vocabulary=32000):
    """A model's folder with random weights; the same for both sides."""
    import torch
    import transformers

    folder = run.work / name
    if folder.exists():
        return folder
    folder.mkdir()
    tokenizer(folder, special=kind == "bert")
    torch.manual_seed(1)
    if kind == "bert":
        config = transformers.BertConfig(vocab_size=vocabulary, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                                         intermediate_size=inner or 4 * hidden, max_position_embeddings=512)
        made = transformers.BertModel(config, add_pooling_layer=False)
    else:
        config = transformers.LlamaConfig(vocab_size=vocabulary, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                                          num_key_value_heads=keys or heads, intermediate_size=inner or 4 * hidden, max_position_embeddings=1024,
                                          bos_token_id=2, eos_token_id=3, pad_token_id=0)
        made = transformers.LlamaModel(config)
    made.to(run.torch_device).save_pretrained(folder)
    # Mean pooling, as both sides are told.
    (folder / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 512}))
    return folder


def torch_embeds(folder, texts, dtype, device):
    """Vectors and texts a second of PyTorch with sdpa, batches of 64 texts."""
    import torch
    import transformers

    torch.backends.cuda.matmul.allow_tf32 = True
    words = transformers.AutoTokenizer.from_pretrained(folder)
    made = transformers.AutoModel.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa", add_pooling_layer=False).to(device).eval()
    lines = texts.read_text().splitlines()

    @torch.no_grad()
    def batch(some):
        tokens = words(some, padding=True, truncation=True, max_length=512, return_tensors="pt").to(device)
        hidden = made(**tokens).last_hidden_state.float()
        mask = tokens["attention_mask"][..., None].float()
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1).cpu()

    batch(lines[:64])
    start = time.monotonic()
    vectors = torch.cat([batch(lines[i : i + 64]) for i in range(0, len(lines), 64)])
    return vectors.numpy(), len(lines) / (time.monotonic() - start)


def to_embed(run):
    """The encoder, and for each length the texts, and a quarter as many."""
    from tokenizers import Tokenizer

    size = dict(layers=2, hidden=64, heads=2) if run.rehearse else dict(layers=12, hidden=768, heads=12)
    folder = model(run, "encoder", "bert", **size)
    tokens_a_word = len(Tokenizer.from_file(str(folder / "tokenizer.json")).encode("koran lunta miven teris").ids) / 4
    count, lengths = 4 if run.rehearse else 2000, {}
    for length in (128, 512):
        words = max(1, int((8 if run.rehearse else length) / tokens_a_word))
        texts = [(f"texts-{length}.txt", count), (f"few-{length}.txt", count // 4)]
        lengths[length] = [lines_of(run.work / name, texts_of, words) for name, texts_of in texts]
    return folder, count, lengths


def embed(run):
    import torch

    folder, count, lengths = to_embed(run)
    for length, (texts, few) in lengths.items():
        exact, rate = torch_embeds(folder, texts, torch.float32, run.torch_device)
        run.say("embed", tokens=length, engine="torch-tf32", texts_s=round(rate, 1), smallest_cosine=1.0)
        vectors, rate = torch_embeds(folder, texts, torch.bfloat16, run.torch_device)
        run.say("embed", tokens=length, engine="torch-bf16", texts_s=round(rate, 1), smallest_cosine=float((exact * vectors).sum(1).min()))
        for weights in WEIGHTS:
            # What a start takes is in both; the first compiles and tries kernels.
            _, first = run.vectors(folder, texts, "--weights", weights)
            _, little = run.vectors(folder, few, "--weights", weights)
            vectors, whole = run.vectors(folder, texts, "--weights", weights)
            rate = (count - count // 4) / max(whole - little, 1e-3)
            run.say("embed", tokens=length, engine=f"kiln-{weights}", texts_s=round(rate, 1), start_s=round(little, 2), compile_s=round(first - whole, 2), smallest_cosine=float((exact * vectors).sum(1).min()))


def jobs(run):
    """Name, model, mode, tokens, batch, whether blocks are checkpointed, engines."""
    small = dict(layers=2, hidden=64, heads=2, vocabulary=1200)
    billion = ("llama", small if run.rehearse else dict(layers=22, hidden=2048, heads=32, keys=4, inner=5632))
    listed = [
        ("encoder", ("bert", small if run.rehearse else dict(layers=12, hidden=768, heads=12)), "full", 128, 32, False, "torch-f32,kiln-f32"),
        ("decoder-0.16b", ("llama", small if run.rehearse else dict(layers=12, hidden=1024, heads=16, inner=2816)), "lora", 256, 16, False, "torch-bf16,kiln-bf16"),
        ("decoder-1.1b", billion, "lora", 256, 16, False, "torch-bf16,kiln-bf16"),
        ("decoder-1.1b", billion, "lora", 512, 32, True, "torch-bf16,kiln-bf16"),
    ]
    return listed[:2] if run.rehearse else listed


def train_speed(run, job, steps, warm_up, kiln_alone):
    """tests/reference/train_speed.py over a job."""
    name, (kind, size), mode, tokens, batch, checkpointed, engines = job
    folder = model(run, name, kind, **size)
    if run.rehearse:
        tokens, batch = 8, 2
    if kiln_alone:
        engines = engines.split(",")[1]
    command = [sys.executable, ROOT / "tests" / "reference" / "train_speed.py", "--model", folder, "--kiln", run.args.kiln, "--mode", mode,
               "--texts", f"equal{tokens}", "--batch", batch, "--engines", engines, "--device", "cuda", "--json", "--steps", steps, "--warm-up", warm_up]
    command += ["--checkpoint-blocks"] if checkpointed else []
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=max(30, run.left()), check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:])
    return json.loads(done.stdout)


def title(job):
    name, _, mode, tokens, batch, checkpointed, _ = job
    return f"{name}, {mode}, {batch} x {tokens}" + (", checkpointed" if checkpointed else "")


def train(run):
    for job in jobs(run):
        what = title(job)
        if run.left() < 45 and not run.rehearse:
            run.say("train", job=what, left_out="no time is left")
            continue
        steps, warm_up = (1, 0) if run.rehearse else (10, 4)
        try:
            found = train_speed(run, job, steps, warm_up, kiln_alone=run.rehearse)
        except RuntimeError as error:
            run.say("train", job=what, failed=str(error))
            continue
        for line in found["engines"]:
            run.say("train", job=what, engine=line["engine"], s_step=round(line["seconds_per_step"], 4), tokens_s=round(line["tokens_per_second"]),
                    peak_mb=line["peak_mb"], losses=[round(loss, 5) for loss in line["losses"][:5]], spread_s=round(statistics.pstdev(line["seconds"][4:] or [0]), 4))


def racecheck(run):
    from shutil import which

    if run.rehearse or not which("compute-sanitizer"):
        run.say("racecheck", left_out="compute-sanitizer is not here")
        return
    texts = lines_of(run.work / "one.txt", 1, 6)
    command = ["compute-sanitizer", "--tool", "racecheck", "--print-limit", "5", run.args.kiln, "embed", "--model", run.args.mini, "--input", texts,
               "--output", run.work / "r.npy", "--device", "cuda:0", "--quiet"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=max(20, run.left() - 5), check=False)
    run.say("racecheck", returned=done.returncode, said=(done.stdout + done.stderr)[-1500:])


def kernels(run):
    """Has Kiln compile what the parts before the tests of numbers launch, by a driver that carries nothing out (tests/cuda): what
    comes of it is worth nothing, and may be refused."""
    said = pathlib.Path(os.environ["FAKE_NVRTC_REPORT"])

    def compiling(what, work):
        said.unlink(missing_ok=True)
        refused = None
        try:
            work()
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            refused = (str(error).strip().splitlines() or ["without a word"])[-1][:300]
        counts = json.loads(said.read_text()) if said.exists() else {}
        run.say("kernels", of=what, compiled=counts.get("compiled", 0), failed=counts.get("failed", 0), refused=refused)

    texts = few_texts(run)
    for weights in WEIGHTS:
        compiling(f"kiln-mini, {weights}", lambda weights=weights: run.vectors(run.args.mini, texts, "--weights", weights))
    def probe():
        if failed := product_lines(run, max(10, run.left()))[1]:
            raise RuntimeError(failed)

    if pathlib.Path(run.args.products).exists():
        compiling("products", probe)
    for job in jobs(run):
        compiling(title(job), lambda job=job: train_speed(run, job, 1, 1, kiln_alone=True))
    folder, _, lengths = to_embed(run)
    for length, files in lengths.items():
        for weights in WEIGHTS:
            for texts in files:
                compiling(f"{texts.stem}, {weights}", lambda weights=weights, texts=texts: run.vectors(folder, texts, "--weights", weights))


# ------------------------------------------------------------------------------------------------ the report


def table(columns, lines):
    cell = lambda value: "" if value is None else f"{value:.7g}" if isinstance(value, float) else str(value)
    rows = [[cell(line.get(column)) for column in columns] for line in lines]
    return "\n".join(["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *("| " + " | ".join(row) + " |" for row in rows)])


def report(run):
    parts = []
    for part in dict.fromkeys(line["part"] for line in run.lines):
        lines = [{key: value for key, value in line.items() if key != "part"} for line in run.lines if line["part"] == part]
        columns = list(dict.fromkeys(key for line in lines for key in line))
        parts.append(f"## {part}\n\n{table(columns, lines)}\n")
    (pathlib.Path(run.args.out) / "report.md").write_text("# Kiln on a GPU\n\n" + "\n".join(parts))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rehearse", action="store_true", help="tiny models, over a driver without a device")
    parser.add_argument("--kernels", action="store_true", help="have the run's kernels compiled, over a driver that carries none out")
    parser.add_argument("--minutes", type=float, default=9)
    for name in ("kiln", "parity", "products", "mini", "work", "out"):
        parser.add_argument(f"--{name}", required=True)
    run = Run(parser.parse_args())
    # What a part needs at least, in seconds; numbers and training come before what is only good to know.
    parts = [(machine, 5), (numbers, 20), (ceilings, 10), (products, 20), (train, 60), (embed, 60), (parity, 30), (racecheck, 30)]
    for part, least in [(kernels, 0)] if run.args.kernels else parts:
        if run.left() < least and not run.rehearse:
            run.say(part.__name__, left_out="no time is left")
            continue
        start = time.monotonic()
        try:
            part(run)
        except Exception as error:  # noqa: BLE001: each part is for itself
            run.say(part.__name__, failed=f"{type(error).__name__}: {error}"[-1500:], where=traceback.format_exc()[-600:])
        print(f"-- {part.__name__}: {time.monotonic() - start:.0f} s", flush=True)
        report(run)


if __name__ == "__main__":
    main()
