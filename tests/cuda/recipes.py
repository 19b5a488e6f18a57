"""Largest memory of each stage of the papers' recipes on a GPU, beside what `train --dry-run` says.

The recipes as they are shipped, but onto a model of zeros as wide as Llama-3.2-1B, of few blocks, with made-up texts of
the full length, batches of a few chunks and two steps. Kernels are compiled, and none is run.
"""

import json
import shutil
import subprocess
import tomllib

LAYERS = (2, 4, 8)
# Llama-3.2-1B's width, with Mistral's number of tokens.
SHAPE = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
    "tie_word_embeddings": True,
}  # fmt: skip
RECIPES = ("nv-embed", "mgh-ata", "anchor", "pooling-attn-5", "linq")
LENGTH = 512
# Of what the card claims to have a quarter is the largest page of cubecl's pools, which just holds the largest tensor: this
# many times that. On a card of 80 GB pages have 5 and 20 GiB, and what is counted is mostly their rounding.
MEMORY = 4.4
# Values of an inner state that are held at once (`INNER_AT_ONCE` in core/src/kernels/mod.rs).
INNER = 2**26
# What an estimate may be away from what is counted.
NEAR = 0.15


def inline(value):
    """A value as TOML writes it in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {inline(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value)


def largest(recipe, stage):
    """Bytes of a stage's largest tensor: token embeddings, an inner state of some tokens, queries, keys and values of a chunk,
    scores of all tokens, or what a pooling head makes."""
    chunk = recipe["compute"]["chunk"]
    rows = chunk * LENGTH
    width = SHAPE["hidden_size"] // SHAPE["num_attention_heads"]
    sides = (SHAPE["num_attention_heads"] + 2 * SHAPE["num_key_value_heads"]) * width
    values = [min(rows * SHAPE["intermediate_size"], INNER), rows * sides, SHAPE["vocab_size"] * SHAPE["hidden_size"]]
    match stage.get("objective", "contrastive"), recipe["model"]["pooling"]["mode"]:
        case "mntp", _:
            values.append(rows * stage["mntp"]["mask"] * SHAPE["vocab_size"])
        case "reconstruction", _:
            values.append(rows / 2 * SHAPE["vocab_size"])
        case _, "anchor":
            values.append(rows * SHAPE["num_attention_heads"] * LENGTH)
        case _, "mean" | "last_token":
            pass
        case _:
            # Heads with latents hold no more than that of them.
            values.append(2**28)
    return 4 * max(values)


def stages(root, names=()):
    """Each stage of each recipe (of those named) by itself, with data and sizes of ours; not those that take the same memory
    as one before."""
    for name in names or RECIPES:
        shipped = tomllib.loads((root / "train-native" / "recipes" / f"{name}.toml").read_text())
        seen = []
        for stage in shipped["stage"]:
            of_memory = [stage.get(field) for field in ("objective", "full", "hard_negatives", "optimizer", "mntp", "reconstruction")]
            if of_memory in seen:
                continue
            seen.append(of_memory)
            chunk = shipped["compute"]["chunk"]
            if stage.get("objective") == "mntp":
                # Scores of all tokens for 8 of 10 tokens are large.
                chunk //= 2
            recipe = {key: shipped[key] for key in ("name", "seed")} | {"compute": shipped["compute"] | {"chunk": chunk}}
            recipe["model"] = shipped["model"] | {"max_length": LENGTH}
            # One set, whose instruction is the first one's.
            ours = next(source for source in shipped["sources"].values() if "instructions" in source)
            recipe["sources"] = {"ours": {"path": "recipes.jsonl", "instructions": ours["instructions"][:1]}}
            # Two chunks of texts.
            batch = 2 * chunk // (2 + stage.get("hard_negatives", 0))
            smaller = {"data": ["ours"], "steps": 2, "warmup": 0, "batch_size": batch, "accumulation": 1}
            smaller |= {"keep_optimizer": False, "merge_lora": False}
            recipe["stage"] = [{key: value for key, value in stage.items() if key != "mixing"} | smaller]
            text = "".join(f"{key} = {inline(value)}\n" for key, value in recipe.items())
            yield f"{name}, {stage['name']}", text, int(MEMORY * largest(recipe, stage) / 2**20)


def counted(check, base, zeros, settings, chosen):
    """Says of each of the chosen stages what is counted and what the dry run says."""
    words = [f"word{i}" for i in range(2000)]
    with open(check.work / "recipes.jsonl", "w", encoding="utf-8") as file:
        for row in range(128):
            def text(number):
                return " ".join(words[(row * 31 + number * 7 + j) % len(words)] for j in range(300))

            levels = {f"n{level}": text(level) for level in range(1, 5)}
            file.write(json.dumps({"query": text(10), "pos": [text(11)], "neg": [text(20 + i) for i in range(7)]} | levels) + "\n")
    models = {layers: check.work / f"recipes-{layers}" for layers in LAYERS}
    for layers, folder in models.items():
        zeros(folder, base, SHAPE, layers)
    for number, (name, text, memory) in enumerate(chosen):
        counted, said = [], []
        for layers in LAYERS:
            recipe = tomllib.loads(text)
            recipe["model"]["base"] = str(models[layers])
            path = check.work / f"recipe-{number}-{layers}.toml"
            path.write_text("".join(f"{key} = {inline(value)}\n" for key, value in recipe.items()))
            output = check.work / f"recipe-{number}-{layers}"
            train = ["train", "--recipe", path, "--device", "cuda:0"]
            found = check.run([*train, "--output", output], settings | {"FAKE_CUDA_MIB": str(memory)})
            shutil.rmtree(output, ignore_errors=True)
            dry = subprocess.run([check.kiln, *train, "--dry-run", "--json", "--quiet"], capture_output=True, text=True, check=True)
            said.append(sum(json.loads(dry.stdout)["stages"][0]["memory"].values()) / 2**30)
            counted.append(found["peak_bytes"] / 2**30)
        assert all(counted), f"{name} counted nothing"
        far = max(abs(ours / theirs - 1) for ours, theirs in zip(said, counted))
        listed = ", ".join(f"{peak:.2f} ({guess:.2f})" for peak, guess in zip(counted, said))
        check.say(name, far < NEAR, f"GiB (as the dry run says) {listed}; at most {far:.0%} apart")
