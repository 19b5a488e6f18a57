#!/usr/bin/env python3
"""What tests/cuda.sh runs: `check.py KILN TOOLKIT [compile] [emulate] [nccl] [count] [recipes [NAME ..]]`, over the driver and the
compiler beside it.

`check.py environment TOOLKIT FOLDER` builds these into FOLDER, and prints a shell's lines under which any program that
loads CUDA computes by the emulator; `check.py counting TOOLKIT FOLDER` those under which it has its kernels compiled for an
H100, and none run.
"""

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import recipes

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ARCHITECTURES = (80, 90, 100)

SHORT = ["a boat on the river", "Who wrote the paper?"]
# More tokens than scores are held of at once.
LONG = [" ".join(f"word {i}" for i in range(400))]

RECIPE = """
name = "cuda"
seed = 3
[model]
max_length = 32
{model}
{lora}
[model.pooling]
{pooling}
[[stage]]
name = "all"
data = ["data.jsonl"]
steps = {steps}
batch_size = 4
lr = 1e-3
"""
NEW = """
[model.new]
vocab_size = 300
hidden_size = 64
intermediate_size = 128
layers = 2
heads = 2
"""
MEAN = 'mode = "mean"'
WIDE_HEADS = 'mode = "latent_attention"\nlatents = 3\nheads = 2\nhead_dim = 128'
LORA = 'lora = { rank = 4, alpha = 8.0, targets = ["all-linear"] }'
PACKED = '\nfrozen_weights = "int4:32"'


def fake_cuda(toolkit, work):
    """Builds driver and compiler, and the variables that have a program load them."""
    root = next(Path(toolkit).rglob("cuda_runtime.h")).parent.parent
    real = next(Path(toolkit).rglob("libnvrtc.so.1*"))
    libraries = work / "lib"
    libraries.mkdir(parents=True)
    for source, library in (("driver", "libcuda.so"), ("compiler", "libnvrtc.so"), ("nccl", "nccl/libnccl.so.2")):
        built = libraries / library
        built.parent.mkdir(exist_ok=True)
        subprocess.run(["gcc", "-O1", "-Wall", "-fPIC", "-shared", HERE / f"{source}.c", "-o", built, "-ldl", "-lpthread"], check=True)
    return {
        "CUDA_PATH": str(root),
        "LD_LIBRARY_PATH": f"{libraries}:{real.parent}",
        "FAKE_NVRTC_REAL": str(real),
        "FAKE_CUDA_REPORT": str(work / "driver.json"),
        "FAKE_NVRTC_REPORT": str(work / "compiler.json"),
    }


def emulating(work):
    """The variables that have kernels run on the CPU."""
    kernels = work / "emulated"
    kernels.mkdir(exist_ok=True)
    return {
        "FAKE_CUDA_SM": "80",
        "FAKE_CUDA_KERNELS": str(kernels),
        "FAKE_CUDA_EMULATE": f"{sys.executable} {HERE / 'emulate.py'}",
        "FAKE_NVRTC_REAL": "",
        "CUBECL_AUTOTUNE_LEVEL": "minimal",
        "XDG_CACHE_HOME": str(work / "cache-emulated"),
    }


class Check:
    """One run of the command after another, and what the fake libraries say of each."""

    def __init__(self, kiln, toolkit, work):
        self.kiln, self.work, self.failures = kiln, work, []
        self.cuda = fake_cuda(toolkit, work)
        (work / "short.txt").write_text("\n".join(SHORT) + "\n")
        (work / "long.txt").write_text("\n".join(LONG) + "\n")
        with open(work / "data.jsonl", "w", encoding="utf-8") as file:
            for i in range(8):
                file.write(json.dumps({"query": f"what is item {i}", "pos": [f"item {i} is number {i * 37}"]}) + "\n")

    def run(self, arguments, settings=None, may_fail=False):
        """Runs the command; the reports of driver and compiler, where they were loaded."""
        reports = [self.work / f"{name}.json" for name in ("driver", "compiler")]
        for path in reports:
            path.unlink(missing_ok=True)
        done = subprocess.run(
            [self.kiln, *map(str, arguments), "--quiet"], env={**os.environ, **(settings or {})}, capture_output=True, text=True,
            check=False,
        )
        if done.returncode and not may_fail:
            sys.exit(f"kiln {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")
        found = {}
        for path in reports:
            found |= json.loads(path.read_text()) if path.exists() else {}
        found["status"] = done.returncode
        found["last"] = (done.stderr.splitlines() or [""])[-1]
        found["complaints"] = [line for line in done.stderr.splitlines() if line.startswith(("fake", "emulator"))]
        return found

    def say(self, name, passed, text):
        print(f"{'ok  ' if passed else 'FAIL'} {name}: {text}", flush=True)
        if not passed:
            self.failures.append(name)

    def recipe(self, name, steps, model=NEW, lora="", compute="", pooling=MEAN):
        path = self.work / f"{name}.toml"
        path.write_text(RECIPE.format(steps=steps, model=model, lora=lora, pooling=pooling) + compute)
        return path


def embed(model, texts, output, device, *more):
    return ["embed", "--model", model, "--input", texts, "--output", output, "--device", device, *more]


def train(recipe, output, device):
    return ["train", "--recipe", recipe, "--output", output, "--device", device, "--overwrite"]


def cases(check, base, outputs):
    """What the product does on a GPU: a name and the command's arguments."""
    mini, short, long = ROOT / "web-demo" / "kiln-mini.kiln", check.work / "short.txt", check.work / "long.txt"
    onto, bf16 = f'base = "{base}"', '[compute]\nprecision = "bf16"\n'
    vectors = outputs / "vectors.npy"
    yield "kiln-mini, as it is", embed(mini, short, vectors, "cuda:0")
    for weights in ("f32", "int8", "int4"):
        yield f"kiln-mini, {weights}", embed(mini, short, vectors, "cuda:0", "--weights", weights)
    yield "decoder, f32", embed(base, short, vectors, "cuda:0")
    yield "decoder, bf16", embed(base, short, vectors, "cuda:0", "--weights", "bf16")
    yield "decoder, long texts", embed(base, long, vectors, "cuda:0", "--max-length", "1024")
    # Of many rows packed weights are unpacked for the backend's own product.
    yield "decoder, long texts, int4", embed(base, long, vectors, "cuda:0", "--max-length", "1024", "--weights", "int4")
    yield "training, all parameters, f32", train(check.recipe("full", 1, onto), outputs / "full", "cuda:0")
    yield "training, LoRA, bf16", train(check.recipe("lora", 1, onto, LORA, compute=bf16), outputs / "lora", "cuda:0")
    yield "training, LoRA, bf16, int4 base", train(check.recipe("packed", 1, onto + PACKED, LORA, compute=bf16), outputs / "packed", "cuda:0")
    recipe = check.recipe("checkpointed", 1, onto, LORA, compute=bf16 + "checkpoint_blocks = true\n")
    yield "training, LoRA, bf16, checkpointed blocks", train(recipe, outputs / "checkpointed", "cuda:0")


def compiled(check, base):
    for architecture in ARCHITECTURES:
        outputs = check.work / f"sm_{architecture}"
        kernels = outputs / "kernels"
        kernels.mkdir(parents=True)
        settings = check.cuda | {"FAKE_CUDA_SM": str(architecture), "FAKE_CUDA_KERNELS": str(kernels)}
        for number, (name, arguments) in enumerate(cases(check, base, outputs)):
            # The kernels that one run keeps are not compiled in the next.
            cache = {"XDG_CACHE_HOME": str(outputs / f"cache-{number}")}
            # Nothing is computed, so that what comes of it may be refused (1); a panic or a signal is another status.
            found = check.run(arguments, settings | cache, may_fail=True)
            count, failed, status = found.get("compiled", 0), found.get("failed", 0), found["status"]
            passed = count > 0 and not failed and status in (0, 1)
            said = f"{count} kernels compiled, {failed} refused, {found.get('launches', 0)} launches, exit status {status}"
            check.say(f"sm_{architecture}, {name}", passed, said)
            for complaint in found["complaints"][:3]:
                print(f"       {complaint}")
        # A second start compiles none of them.
        (name, arguments), cache = next(cases(check, base, outputs)), {"XDG_CACHE_HOME": str(outputs / "cache-0")}
        again = check.run(arguments, settings | cache, may_fail=True)
        count, launches, status = again.get("compiled", 0), again.get("launches", 0), again["status"]
        passed = launches > 0 and not count and status in (0, 1)
        check.say(f"sm_{architecture}, {name}, once more", passed, f"{count} kernels compiled, {launches} launches, exit status {status}")


# Launches of embedding by two blocks, at most: a norm that fusion made of several kernels would be ten more.
DECODER, MOST_OF_DECODER = "decoder, f32", 100


def emulated(check, base):
    settings = check.cuda | emulating(check.work)
    work, mini = check.work, ROOT / "web-demo" / "kiln-mini.kiln"
    # On the CPU few-bit weights meet states of eight bits, on a GPU whole ones.
    for name, model, texts, more, least in (
        ("kiln-mini, f32", mini, "short.txt", ["--weights", "f32"], 0.99999),
        ("kiln-mini, packed", mini, "short.txt", [], 0.999),
        (DECODER, base, "short.txt", [], 0.99999),
        ("decoder, int8", base, "short.txt", ["--weights", "int8"], 0.999),
        ("decoder, long texts", base, "long.txt", ["--max-length", "1024"], 0.99999),
        # Of many rows packed weights are unpacked for the backend's own product.
        ("decoder, long texts, int8", base, "long.txt", ["--max-length", "1024", "--weights", "int8"], 0.999),
        ("decoder, bf16", base, "short.txt", ["--weights", "bf16"], 0.999),
    ):
        check.run(embed(model, work / texts, work / "cpu.npy", "cpu", *more))
        found = check.run(embed(model, work / texts, work / "gpu.npy", "cuda:0", *more), settings)
        ours, theirs = np.load(work / "cpu.npy"), np.load(work / "gpu.npy")
        cosine = float((ours * theirs).sum(1).min())
        counts = f"{found['launches']} launches, {found['not_run']} not run, {found['peak_bytes'] >> 20} MiB"
        few = name != DECODER or found["launches"] <= MOST_OF_DECODER
        # Products are TF32's on CUDA, whose numbers have ten bits.
        check.say(name, cosine > least and not found["not_run"] and few, f"smallest cosine to the CPU {cosine:.8f}; {counts}")
    # From the same weights: what is drawn for a new model, or for an adapter's A, differs from device to device. An adapter
    # begins with a B of zeros, so that its first loss is the base's, and nothing after it is alike.
    onto, bf16 = f'base = "{base}"', PRECISION
    # As language models come; its frozen weights stay so on a GPU.
    half = work / "half"
    check.run(["quantize", "--model", base, "--scheme", "bf16", "--output", half])
    # A head that folds into its projections in training.
    check.run(train(check.recipe("wide", 1, onto, pooling=WIDE_HEADS), work / "wide", "cpu"))
    wide = f'base = "{work / "wide" / "model"}"'
    # Blocks that are computed again drop out other values.
    keeping = LORA.replace("targets", "dropout = 0.0, targets")
    for name, recipe, near, steps, keys in (
        ("training, all parameters, f32", check.recipe("full", 2, onto), 0.005, 2, ("loss", "grad_norm")),
        ("the same, checkpointed blocks", check.recipe("again", 2, onto, compute="[compute]\n" + CHECKPOINTED), 0.005, 2, ("loss", "grad_norm")),
        ("training, wide pooling heads, f32", check.recipe("wide-full", 2, wide, pooling=WIDE_HEADS), 0.005, 2, ("loss", "grad_norm")),
        ("training, LoRA, f32", check.recipe("lora-f32", 1, onto, LORA), 0.005, 1, ("loss",)),
        ("training, LoRA, bf16", check.recipe("lora", 1, onto, keeping, compute=bf16), 0.03, 1, ("loss",)),
        ("training, LoRA, bf16, a base in bf16", check.recipe("half", 1, f'base = "{half}"', LORA, compute=bf16), 0.03, 1, ("loss",)),
    ):
        outputs = [work / f"{recipe.stem}-{device}" for device in ("cpu", "gpu")]
        check.run(train(recipe, outputs[0], "cpu"))
        found = check.run(train(recipe, outputs[1], "cuda:0"), settings)
        runs = [[json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()] for output in outputs]
        assert [len(run) for run in runs] == [steps, steps]
        apart = {key: max(abs(cpu[key] - gpu[key]) / abs(cpu[key]) for cpu, gpu in zip(*runs)) for key in keys}
        said = ", ".join(f"{key} within {value:.1e} of the CPU's" for key, value in apart.items())
        passed = max(apart.values()) < near and not found["not_run"]
        check.say(name, passed, f"{said}; {found['launches']} launches, {found['peak_bytes'] >> 20} MiB")
    # On one device adapters begin alike, so that gradients are compared, too.
    again = work / "checkpointed-gpu"
    found = check.run(train(check.recipe("checkpointed", 1, onto, keeping, compute=bf16 + CHECKPOINTED), again, "cuda:0"), settings)
    apart = far(steps_of(work / "lora-gpu"), steps_of(again))
    said = f"loss and norm within {apart:.1e} of those of whole graphs; {found['launches']} launches"
    check.say("training, LoRA, bf16, checkpointed blocks", apart < 0.01 and not found["not_run"], said)
    # A packed base beside the same numbers in floating point: unpacked, they are the same factors.
    few = work / "few"
    check.run(["quantize", "--model", base, "--scheme", "int4:32", "--output", few])
    runs = []
    for name, more in (("dequantized", ""), ("packed", PACKED)):
        output = work / f"{name}-gpu"
        recipe = check.recipe(name, 1, f'base = "{few}"' + more, keeping, compute=bf16)
        found = check.run(train(recipe, output, "cuda:0"), settings)
        runs.append(steps_of(output))
    apart = far(*runs)
    said = f"loss and norm within {apart:.1e} of those of the dequantized base; {found['launches']} launches, {found['peak_bytes'] >> 20} MiB"
    check.say("training, LoRA, int4 base", apart < 0.001 and not found["not_run"], said)


# Decoders of which the blocks alone count: one as thin as may be, and one as wide as Mistral-7B.
THIN = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
MISTRAL = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
ALL_LINEAR = 'lora = { rank = 16, alpha = 32.0, dropout = DROPOUT, targets = ["all-linear"] }'
PRECISION, CHECKPOINTED = '[compute]\nprecision = "bf16"\n', "checkpoint_blocks = true\n"
LAYERS = (2, 4, 8)
# The card that a wide model is counted on, as large as all that Mistral-7B may take. cubecl's pools take pages of a share of the
# card: on one of 80 GB a page is 1.25 GiB, which hides what a layer adds.
CARD = 28 << 10


def zeros(folder, donor, shape, layers):
    """A model of zeros in bf16, as language models come, with another's tokenizer; its file takes no room on a disk."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((donor / name).read_bytes())
    config = json.loads((donor / "config.json").read_text()) | shape | {"num_hidden_layers": layers, "max_position_embeddings": 4096}
    config |= {"head_dim": shape["hidden_size"] // shape["num_attention_heads"], "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    tensors = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for layer in range(layers):
        of_layer = {
            "self_attn.q_proj": [hidden, hidden], "self_attn.k_proj": [keys, hidden], "self_attn.v_proj": [keys, hidden],
            "self_attn.o_proj": [hidden, hidden], "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden],
            "mlp.down_proj": [hidden, inner], "input_layernorm": [hidden], "post_attention_layernorm": [hidden],
        }  # fmt: skip
        tensors |= {f"model.layers.{layer}.{name}.weight": extents for name, extents in of_layer.items()}
    header, end = {}, 0
    for name, extents in tensors.items():
        begin, end = end, end + 2 * int(np.prod(extents))
        header[name] = {"dtype": "BF16", "shape": extents, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def counting(work, architecture):
    """The variables that have kernels compiled for an architecture and counted, and none run."""
    kernels = work / "counted-kernels"
    kernels.mkdir(exist_ok=True)
    return {"FAKE_CUDA_SM": str(architecture), "FAKE_CUDA_KERNELS": str(kernels), "XDG_CACHE_HOME": str(work / "cache-counted")}


def cut_short(found, output, steps):
    """What a run whose kernels are not run ended with before its last step, if it did; what it makes of the model after may be
    refused, and a panic or a signal has another status."""
    lines = output / "metrics.jsonl"
    made = len(lines.read_text().splitlines()) if lines.exists() else 0
    whole = found["status"] in (0, 1) and made == steps
    return [] if whole else [f"exit status {found['status']} after {made} of {steps} steps: {found['last']}"]


def counted(check, base):
    """Launches of a step and the largest memory by layers. Kernels are compiled, and none is run."""
    words = [f"word{i}" for i in range(2000)]
    with open(check.work / "data.jsonl", "w", encoding="utf-8") as file:
        for i in range(64):
            query = " ".join(words[(i * 31 + j) % len(words)] for j in range(700))
            file.write(json.dumps({"query": query, "pos": [query[::-1]]}) + "\n")
    settings = check.cuda | counting(check.work, 80)
    lora, dropping = ALL_LINEAR.replace("DROPOUT", "0.0"), ALL_LINEAR.replace("DROPOUT", "0.1")
    wide = "as wide as Mistral-7B"
    # The last column is what a layer may add at most: launches of a step where it is thin, GiB where it is wide.
    for number, (name, shape, adapters, compute, (texts, length), most) in enumerate((
        ("all parameters, f32", THIN, "", "", (8, 64), 50),
        ("LoRA, f32", THIN, lora, "", (8, 64), 79),
        ("LoRA, bf16", THIN, lora, PRECISION, (8, 64), 85),
        ("LoRA with dropout, bf16", THIN, dropping, PRECISION, (8, 64), 107),
        # Of three forward passes there would be more.
        ("LoRA, bf16, checkpointed", THIN, lora, PRECISION + CHECKPOINTED, (8, 64), 118),
        (f"{wide}: LoRA, bf16, checkpointed", MISTRAL, lora, PRECISION + CHECKPOINTED, (32, 512), 0.55),
        (f"{wide}: LoRA, bf16", MISTRAL, lora, PRECISION, (8, 128), 0.62),
    )):
        launches, peaks, predicted, ended = [], [], [], []
        for layers in LAYERS:
            model = check.work / f"zeros-{number}-{layers}"
            zeros(model, base, shape, layers)
            found = []
            # A wide model takes its time to load; its launches are a thin one's.
            for steps in (1, 2) if shape is THIN else (2,):
                recipe = RECIPE.format(steps=steps, model=f'base = "{model}"', lora=adapters, pooling=MEAN) + compute
                recipe = recipe.replace("max_length = 32", f"max_length = {length}")
                # Without negatives, which the data have none of and the dry run would count.
                recipe = recipe.replace("batch_size = 4", f"batch_size = {texts // 2}\nhard_negatives = 0")
                path = check.work / f"count-{number}-{layers}-{steps}.toml"
                path.write_text(recipe)
                output = check.work / f"counted-{number}-{layers}-{steps}"
                card = {} if shape is THIN else {"FAKE_CUDA_MIB": str(CARD)}
                found.append(check.run(train(path, output, "cuda:0"), settings | card, may_fail=True))
                ended += cut_short(found[-1], output, steps)
                # A wide model is gigabytes in f32.
                shutil.rmtree(output, ignore_errors=True)
            dry = [check.kiln, "train", "--recipe", path, "--dry-run", "--json", "--quiet", "--device", "cuda:0"]
            said = json.loads(subprocess.run(dry, capture_output=True, text=True, check=True).stdout)
            predicted.append(sum(said["stages"][0]["memory"].values()) / 2**30)
            # One that is killed leaves no report.
            launches.append(found[-1].get("launches", 0) - found[0].get("launches", 0))
            peaks.append(found[-1].get("peak_bytes", 0) / 2**30)
        each, every = ((of[-1] - of[0]) / (LAYERS[-1] - LAYERS[0]) for of in (launches, peaks))
        listed = ", ".join(f"{peak:.3f} ({said:.3f})" for peak, said in zip(peaks, predicted))
        counts = f"launches a step {launches}, {each:.0f} a layer" if shape is THIN else f"GiB (as the dry run says) {listed}, {every:.3f} a layer"
        passed = not ended and 0 < (each if shape is THIN else every) <= most
        check.say(name, passed, "; ".join([f"{counts}, of at most {most}", *ended]))
    # Pages that a stage has filled are the driver's again before the next one, of other sizes, fills its own.
    recipe = RECIPE.format(steps=1, model=f'base = "{check.work / "zeros-1-2"}"', lora=lora, pooling=MEAN)
    recipe = recipe.replace("max_length = 32", "max_length = 512").replace("batch_size = 4", "batch_size = 16\nhard_negatives = 0")
    second = recipe[recipe.index("[[stage]]") :].replace('"all"', '"merged"').replace("= 16", "= 2") + "merge_lora = true\n"
    path, output = check.work / "count-stages.toml", check.work / "counted-stages"
    path.write_text(recipe + second)
    found = check.run(train(path, output, "cuda:0"), settings, may_fail=True)
    ended, freed = cut_short(found, output, 2), found.get("freed_bytes", 0) / 2**20
    check.say("between stages", not ended and freed > 0, "; ".join([f"{freed:.0f} MiB are given back", *ended]))


def steps_of(run):
    """Loss and norm of each step."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [(line["loss"], line["grad_norm"]) for line in map(json.loads, lines)]


class Job:
    """Processes that train together, each with a GPU of its own, and what became of them."""

    def __init__(self, check, name, recipe, ranks=2, each=None, seconds=900, **settings):
        self.output, self.reports = check.work / f"nccl-{name}", [check.work / f"nccl-{rank}.json" for rank in range(ranks)]
        for path in self.reports:
            path.unlink(missing_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        together = check.cuda | emulating(check.work) | {
            "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "KILN_SECRET": "only for this check",
            "KILN_TIMEOUT": "15", "LD_LIBRARY_PATH": f"{check.cuda['LD_LIBRARY_PATH']}:{check.work / 'lib' / 'nccl'}",
        } | settings
        processes = []
        for rank in range(ranks):
            own = {"RANK": str(rank), "FAKE_CUDA_FIRST": str(rank), "FAKE_NCCL_REPORT": str(self.reports[rank])}
            own |= (each or {}).get(rank, {})
            command = [check.kiln, *map(str, train(recipe, self.output if rank == 0 else check.work / "nowhere", "cuda:0"))]
            processes.append(subprocess.Popen(command, env=os.environ | together | own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        begun = time.monotonic()
        self.said = []
        for process in processes:
            try:
                self.said.append(process.communicate(timeout=max(seconds - time.monotonic() + begun, 1))[0])
            except subprocess.TimeoutExpired:
                process.kill()
                self.said.append(process.communicate()[0] + "\nit was still running")
        self.codes, self.seconds = [process.returncode for process in processes], time.monotonic() - begun

    def losses(self):
        return steps_of(self.output)

    def sums(self):
        """What NCCL says of each process: sums, and communicators that were never ended."""
        found = [json.loads(path.read_text()) if path.exists() else {"sums": 0, "open": 0} for path in self.reports]
        return [(report["sums"], report["open"]) for report in found]

    def errors(self):
        lines = [line for said in self.said for line in said.splitlines()]
        return [line for line in lines if line.startswith(("error", "fake", "thread", "it was still"))]


def far(one, other):
    """The largest relative difference of numbers; infinite where there are not as many."""
    pairs = list(zip(sum(one, ()), sum(other, ())))
    return max(abs(a - b) / abs(a) for a, b in pairs) if pairs and len(one) == len(other) else float("inf")


def among_gpus(check, base):
    onto = f'base = "{base}"'
    recipe = check.recipe("nccl", 3, onto)
    alone = check.work / "nccl-alone"
    check.run(train(recipe, alone, "cuda:0"), check.cuda | emulating(check.work))
    one = steps_of(alone)

    def trains(name, recipe, sums, words, like=None, near=1e-6, **settings):
        """A job whose numbers are `near` another's, and one GPU's as products in TF32 of other sizes are."""
        job = Job(check, name, recipe, **settings)
        done = not any(job.codes)
        differences = [far(losses, job.losses()) if done else float("inf") for losses in (one, like.losses() if like else one)]
        counted = job.sums()
        passed = differences[0] < 3e-3 and (differences[1] < near or not like) and words in job.said[0] and not job.errors()
        passed = passed and all((n > 0) == sums and left == 0 for n, left in counted)
        beside = f" and {differences[1]:.1e} of those by the hosts' memory" if like else ""
        check.say(f"NCCL, {name}", passed, f"losses and norms within {differences[0]:.1e} of one GPU's{beside}, sums {[n for n, _ in counted]}")
        if not passed:
            print("\n".join(f"rank {rank}: {said[-2000:]}" for rank, said in enumerate(job.said)))
        return job

    by_nccl, by_hosts = "gradients are summed by NCCL among", "gradients pass through the hosts' memory: "
    hosts = trains("KILN_NCCL=off", recipe, False, by_hosts + "rank 0", KILN_NCCL="off")
    trains("two GPUs", recipe, True, by_nccl, hosts)
    trains("three GPUs", recipe, True, by_nccl, ranks=3)
    bf16 = check.recipe("nccl-bf16", 3, onto, compute='[compute]\ngradients = "bf16"\n')
    trains("gradients in bf16", bf16, True, by_nccl, hosts, 0.01)
    sharded = check.recipe("nccl-sharded", 3, onto, compute="[compute]\nshard_optimizer = true\n")
    trains("optimizer shared out", sharded, True, by_nccl, hosts)
    trains("no library", recipe, False, by_hosts, hosts, LD_LIBRARY_PATH=check.cuda["LD_LIBRARY_PATH"])
    trains("one GPU for both", recipe, False, "compute on the same GPU", hosts, each={1: {"FAKE_CUDA_FIRST": "0"}})
    trains("two versions", recipe, False, "of NCCL, and rank 1", hosts, each={1: {"FAKE_NCCL_VERSION": "22900"}})
    # In one process, where each device is a thread's.
    threads = check.work / "nccl-threads"
    libraries = {"LD_LIBRARY_PATH": f"{check.cuda['LD_LIBRARY_PATH']}:{check.work / 'lib' / 'nccl'}"}
    two = check.cuda | emulating(check.work) | {"FAKE_CUDA_DEVICES": "2", "FAKE_NCCL_REPORT": str(hosts.reports[0])} | libraries
    check.run([*train(recipe, threads, "cuda:0")[:-3], "--overwrite", "--devices", "cuda:0,cuda:1"], two)
    report = json.loads(hosts.reports[0].read_text())
    difference = far(hosts.losses(), steps_of(threads))
    passed = difference < 1e-6 and report["sums"] == 6 and report["open"] == 0
    check.say("NCCL, two GPUs of one process", passed, f"within {difference:.1e} of two processes by the hosts' memory, sums {report['sums']}")
    for name, each, words in (
        ("a sum that fails", {1: {"FAKE_NCCL_FAIL": "2"}}, "NCCL cannot sum: ncclSystemError it was told to fail"),
        ("a sum that never ends", {1: {"FAKE_NCCL_HANG": "2"}}, "stands still"),
        ("a GPU that does not start", {1: {"FAKE_NCCL_REFUSE": "1"}}, "rank 1 (" ),
        ("a GPU that breaks between sums", {1: {"FAKE_CUDA_BREAKS": "900"}}, "rank 1 ("),
    ):
        job = Job(check, name.replace(" ", "-"), recipe, each=each, seconds=120)
        # Each process says in a line which rank it is, and ends by itself.
        lines = [[line for line in said.splitlines() if line.startswith("error")] for said in job.said]
        passed = all(code > 0 for code in job.codes) and all(len(one) == 1 for one in lines) and words in lines[0][0]
        passed = passed and not any(line.startswith(("fake", "it was still")) for line in job.errors())
        check.say(f"NCCL, {name}", passed, f"after {job.seconds:.0f} s: " + "; ".join(line[:300] for line in job.errors()))


def main(kiln, toolkit, *parts):
    if kiln in ("environment", "counting"):
        work = Path(parts[0])
        settings = fake_cuda(toolkit, work) | (emulating(work) if kiln == "environment" else counting(work, 90))
        for name, value in settings.items():
            print(f"export {name}={shlex.quote(value)}")
        return
    with tempfile.TemporaryDirectory() as folder:
        check = Check(kiln, toolkit, Path(folder))
        # A model to embed with, made on the CPU.
        check.run(train(check.recipe("base", 2), check.work / "base", "cpu"))
        base = check.work / "base" / "model"
        if not parts or "compile" in parts:
            compiled(check, base)
        if not parts or "emulate" in parts:
            emulated(check, base)
        if not parts or "nccl" in parts:
            among_gpus(check, base)
        # Takes 20 GB of main memory.
        if "count" in parts:
            counted(check, base)
        if "recipes" in parts:
            recipes.counted(check, base, zeros, check.cuda | counting(check.work, 80), recipes.stages(ROOT, parts[parts.index("recipes") + 1 :]))
    if check.failures:
        sys.exit(f"{len(check.failures)} failed: {'; '.join(check.failures)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
