"""Is the loss that `kiln train` takes its first step by the papers' loss? Beside PyTorch, on a pretrained decoder.

    python tests/reference/objectives.py --model MODEL [--kiln target/release/kiln] [--only WORDS] [--threads N] \\
        [--allow-missing]
    python tests/reference/objectives.py --tiny [--kiln target/release/kiln] ..

MODEL is the Hugging Face folder of SmolLM2-135M-Instruct (or another Llama with tied embeddings). Needs torch,
transformers, peft and sentence-transformers (`tests/setup.sh python`), 4 GB of memory and minutes of two idle cores.
With --tiny the model is a random Llama of four layers, made here with a fixed seed: what the tests run, in less than a
minute (`tests/cli/objectives.rs`).

The other side is `torch_objectives.py`: the formulas of METHODS.md over transformers' hidden states, in f32. Each case
is a recipe of one step on eight made-up pairs of at most 64 tokens. It passes where both sides saw as many tokens and
the losses are within 1e-4 of each other, relatively. Adapters start without effect and the learning rate is 1e-12, so
that neither changes anything; cases named 'gradient' train all parameters and compare the gradient's norm too.

Heads with parameters start at random: their weights are read from the model that Kiln saved, and vectors are compared.
So are tokens: a model whose vectors are weighted sums of its tokens' own random vectors, in which each token's place
counts, gives the same vectors only for the same tokens.

What a case needs and the binary does not know fails, unless --allow-missing.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time
import warnings

import numpy as np
import torch
import torch.nn.functional as F
import torch_objectives as reference
from safetensors.torch import load_file, save_file
from torch_objectives import Decoder, Reader
from transformers import AutoModel, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

CLOSE = 1e-4
GRADIENT_CLOSE = 1e-3
SAME_VECTOR = 1e-6
# One other token among 64, or two that change places, make at least 5e-7.
SAME_TOKENS = 1e-8
CUT = 64
TAU = 0.05
APPENDIX_A = "distillation, NV-Embed's appendix A"
PROMPT = "Instruct: Given a question, find the passage that answers it\nQuery: "
SUFFIX = " [/INST]"

SUBJECTS = "baker,teacher,Segler,médecin,farmer,художник,pilot,mason,singer,clerk,nurse,miller".split(",")
THINGS = "lantern,basket,engine,letter,kettle,Leiter,compás,barrel,blanket,зеркало,wagon,clock".split(",")
PLACES = "harbour,village,orchard,library,market,bridge,valley,workshop,garden,station".split(",")


def made_up():
    """Eight rows with two positives and a negative; no text twice, some longer than the cut."""
    draw = random.Random(23)
    subjects, things = draw.sample(SUBJECTS, 8), draw.sample(THINGS, 8)

    def passage(subject, thing, clauses):
        parts = [f"The {subject} of the {draw.choice(PLACES)} mends a {thing}"]
        parts += [f"carries it to the {draw.choice(PLACES)} number {draw.randrange(900)}" for _ in range(clauses)]
        return ", ".join(parts) + "."

    rows = []
    for i, (subject, thing) in enumerate(zip(subjects, things)):
        known = [passage(subject, thing, clauses) for clauses in ([2, 1, 9][i % 3], 4)]
        rows.append(
            {
                "query": f"Who mends the {thing} in {draw.randrange(1700, 2000)}" + " and why" * (i % 4) + "?",
                "pos": known[0],
                "known": known[:1],
                "second": known[1],
                "neg": [passage(draw.choice(SUBJECTS), draw.choice(THINGS), i % 5)],
            }
        )
    return rows


# ------------------------------------------------------------------------------------------------ Kiln


class Missing(Exception):
    """The binary does not know a field."""


def toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


class Kiln:
    def __init__(self, binary, folder, threads):
        self.binary, self.folder, self.runs = binary, folder, 0
        count = str(threads)
        # Vectors of teachers are kept between runs of one user; not those of a test.
        self.environment = os.environ | {"RAYON_NUM_THREADS": count, "XDG_CACHE_HOME": str(folder / "cache")}

    def train(self, model, stage, files, seed=1, save=False):
        """Trains for a step; what is reported of it, and the model's folder if it is to be saved."""
        self.runs += 1
        folder = self.folder / f"run-{self.runs}"
        folder.mkdir()
        for name, rows in files.items():
            (folder / name).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        common = {"name": "one", "data": list(files), "steps": 1, "batch_size": 8, "lr": 1e-12, "schedule": "constant"}
        lines = ['name = "objectives"', f"seed = {seed}", "[model]"]
        lines += [f"{key} = {toml(value)}" for key, value in ({"max_length": CUT} | model).items()]
        lines += ["[[stage]]"]
        lines += [f"{key} = {toml(value)}" for key, value in (common | stage).items()]
        (folder / "recipe.toml").write_text("\n".join(lines) + "\n")
        out = folder / "out"
        command = [self.binary, "--device", "cpu", "--json", "--quiet", "train"]
        command += ["--recipe", str(folder / "recipe.toml"), "--output", str(out)]
        with open(folder / "stderr", "w+") as stderr:
            run = subprocess.Popen(
                command, env=self.environment, stdout=subprocess.DEVNULL, stderr=stderr
            )
            metrics = out / "metrics.jsonl"
            while run.poll() is None:
                # The step is what we came for; saving the model takes longer.
                if not save and metrics.exists() and metrics.read_text().endswith("\n"):
                    run.kill()
                time.sleep(0.02)
            if not (metrics.exists() and metrics.read_text().endswith("\n")) or (save and run.returncode):
                stderr.seek(0)
                self.refused(stderr.read())
        step = json.loads(metrics.read_text().splitlines()[0])
        return step, out / "model"

    def embed(self, model, texts, *options):
        rows, vectors = self.folder / "texts.jsonl", self.folder / "vectors.npy"
        rows.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts))
        command = [self.binary, "--device", "cpu", "--quiet", "embed", "-m", str(model), "-i", str(rows)]
        command += ["-o", str(vectors), *options]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            self.refused(done.stderr)
        return torch.from_numpy(np.load(vectors)).float()

    @staticmethod
    def refused(message):
        unknown = ("unknown field", "unknown variant", "unexpected argument", "no field", "invalid type")
        kind = Missing if any(words in message for words in unknown) else RuntimeError
        field = re.search(r"(unknown \w+ `\w+`|unexpected argument '[^']+')", message)
        raise kind(field[0] if field else " ".join(message.split())[:300])


# ------------------------------------------------------------------------------------------------ PyTorch


class Side:
    """The models of the PyTorch side, and the folders that Kiln gets."""

    def __init__(self, model, folder):
        from peft import LoraConfig, PeftModel, get_peft_model

        self.folder = folder
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.base = pathlib.Path(model).resolve()
        self.plain = self.decoder(self.load())
        # The same weights with adapters that do something: another model, for students of `plain`.
        torch.manual_seed(3)
        config = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear")
        adapted = get_peft_model(self.load(), config)
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.05)
        self.adapters = folder / "adapters"
        adapted.peft_config["default"].base_model_name_or_path = str(self.base)
        adapted.save_pretrained(self.adapters)
        self.adapted = self.decoder(PeftModel.from_pretrained(self.load(), self.adapters))
        # Below the last block nothing trains, so the backward pass ends there.
        last = self.plain.model.config.num_hidden_layers - 1
        self.lora = adapters(f"layers.{last}.self_attn.q_proj")
        self.eos_base = self.variant("eos", {"add_eos_token": True})
        self.masking_base = self.variant("masking", {}, {"include_prompt": False})
        # A bare decoder pools its last token.
        self.teacher = self.variant("teacher", {}, {})

    def load(self):
        return AutoModel.from_pretrained(self.base, dtype=torch.float32, attn_implementation="eager")

    def decoder(self, model):
        # Where EOS pads too, PyTorch would leave out EOS's own share of the embeddings' gradient.
        model.get_input_embeddings().padding_idx = None
        return Decoder(model.eval(), self.tokenizer.pad_token_id)

    def variant(self, name, tokenizer, mean=None):
        """The base's folder with other settings in its files; those of mean pooling where they are given."""
        folder = self.folder / name
        (folder / "1_Pooling").mkdir(parents=True)
        for file in self.base.iterdir():
            (folder / file.name).symlink_to(file)
        names = json.loads((folder / "tokenizer_config.json").read_text()) | tokenizer
        (folder / "tokenizer_config.json").unlink()
        (folder / "tokenizer_config.json").write_text(json.dumps(names))
        if mean is not None:
            kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
            modules = [
                {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
                for i, (path, kind) in enumerate(kinds)
            ]
            (folder / "modules.json").write_text(json.dumps(modules))
            width = json.loads((folder / "config.json").read_text())["hidden_size"]
            pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
            (folder / "1_Pooling/config.json").write_text(json.dumps(pooling | mean))
        return folder

    def reader(self, length=CUT, **settings):
        return Reader(self.tokenizer, length, **settings)

    def tiny(self, name, tied=True, **sizes):
        """A random Llama of two layers with the base's tokenizer."""
        torch.manual_seed(5)
        sizes = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4) | sizes
        config = LlamaConfig(
            vocab_size=len(self.tokenizer), num_key_value_heads=2, head_dim=16, tie_word_embeddings=tied,
            max_position_embeddings=512, initializer_range=0.2, attn_implementation="eager", bos_token_id=1,
            eos_token_id=2, pad_token_id=self.tokenizer.pad_token_id, **sizes,
        )
        model = LlamaForCausalLM(config).eval()
        # Not zeros at the token that pads.
        torch.nn.init.normal_(model.get_input_embeddings().weight)
        folder = self.folder / name
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        return folder, model


def tiny_base(folder):
    """A random Llama with tied embeddings and a byte-level tokenizer in the manner of SmolLM2's."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    bytes_alone = tokenizers.Tokenizer(tokenizers.models.BPE())
    bytes_alone.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    bytes_alone.decoder = tokenizers.decoders.ByteLevel()
    texts = [text for row in made_up() for text in (row["query"], row["pos"], row["second"], *row["neg"], PROMPT)]
    bytes_alone.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytes_alone, bos_token=special[1], eos_token=special[2], pad_token=special[2],
        unk_token=special[0], model_max_length=512,
    )
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=96, intermediate_size=160, num_hidden_layers=4, num_attention_heads=6,
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, max_position_embeddings=512,
        initializer_range=0.1, bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def adapters(*targets):
    return {"lora": {"rank": 1, "alpha": 1, "dropout": 0.0, "targets": list(targets)}}


class Case:
    """A recipe, and what PyTorch makes of the same batch: losses by token count, where Kiln may draw several."""

    def __init__(self, name, torch_side, model=None, stage=None, files=None, full=False, seeds=(1,)):
        self.name, self.torch_side, self.full, self.seeds = name, torch_side, full, seeds
        self.model, self.stage, self.files = model or {}, stage or {}, files


def for_kiln(rows):
    return [{"query": row["query"], "pos": row["known"], "neg": row["neg"]} for row in rows]


def contrastive(
    side, rows, pool, reader=None, decoder=None, causal=True, padding="right", prompt="", width=None, **loss
):
    """InfoNCE of rows, and the tokens of the batch."""
    reader, decoder = reader or side.reader(), decoder or side.plain
    queries = [reader.read(row["query"], prompt) for row in rows]
    names = [text for row in rows for text in (row["pos"], *row["neg"])]
    documents = [reader.read(name) for name in names]
    vectors = [pool(decoder(texts, causal, padding)) for texts in (queries, documents)]
    query_vectors, document_vectors = (part[:, :width] for part in vectors)
    loss = {"tau": TAU} | loss
    value = reference.info_nce(rows, query_vectors, dict(zip(names, document_vectors)), **loss)
    return sum(len(text.ids) for text in queries + documents), value


def contrastive_cases(side):
    rows = made_up()
    files = {"rows.jsonl": for_kiln(rows)}
    eos = dict(add_eos=True)
    last, mean = reference.last_token, reference.mean

    def case(name, pool, mode, model=None, stage=None, full=False, base=None, score=None, files=files, **settings):
        head = {"mode": mode} | ({"score": score} if score else {})
        model = {"base": str(base or side.base), "pooling": head} | (model or {})
        stage = {"loss": {"temperature": TAU}} | (stage or {})
        return Case(name, lambda: [contrastive(side, rows, pool, **settings)], model, stage, files, full)

    bidirectional = {"attention": "bidirectional"}
    prompted = {"data": [{"path": "rows.jsonl", "query_prompt": PROMPT}]}
    yield case("last token, EOS by the base's files", last, "last_token", base=side.eos_base, reader=side.reader(**eos))
    yield case("last token, EOS", last, "last_token", {"add_eos": True}, reader=side.reader(**eos))
    yield case(
        "last token, BOS and EOS, padded left", last, "last_token",
        {"add_bos": True, "add_eos": True, "padding_side": "left"}, reader=side.reader(add_bos=True, **eos),
        padding="left",
    )
    yield case(
        "last token, suffix and EOS", last, "last_token", {"add_eos": True, "text_suffix": SUFFIX},
        reader=side.reader(text_suffix=SUFFIX, **eos),
    )
    yield case("mean, gradient", mean, "mean", full=True)
    yield case(
        "mean, temperature 0.02, adapters everywhere", mean, "mean", adapters("all-linear"),
        {"loss": {"temperature": 0.02}}, tau=0.02,
    )
    yield case("mean, bidirectional", mean, "mean", bidirectional, causal=False)
    yield case("mean, PEFT's adapters", mean, "mean", base=side.adapters, decoder=side.adapted)
    yield case("mean, instruction pooled", mean, "mean", stage=prompted, prompt=PROMPT)
    yield case(
        "mean, instruction masked by the base's files", mean, "mean", stage=prompted, base=side.masking_base,
        prompt=PROMPT, reader=side.reader(instruction="masked"),
    )
    yield case(
        "mean, BOS and EOS, instruction masked", mean, "mean",
        {"add_bos": True, "add_eos": True, "instruction": "masked"} | bidirectional, stage=prompted, prompt=PROMPT,
        causal=False, reader=side.reader(add_bos=True, instruction="masked", **eos),
    )
    for score in ("log1p", "linear", "square", "column_product"):
        pool = reference.anchor(score)
        yield case(f"anchor, {score}", pool, "anchor", score=score)
        yield case(f"anchor, {score}, bidirectional", pool, "anchor", bidirectional, score=score, causal=False)
    yield case(
        "anchor, log1p, instruction masked", reference.anchor("log1p"), "anchor", {"instruction": "masked"},
        stage=prompted, score="log1p", prompt=PROMPT, reader=side.reader(instruction="masked"),
    )
    alone = {"loss": {"in_batch": False, "temperature": TAU}}
    yield case("hard negatives only", mean, "mean", stage=alone, in_batch=False)
    yield case(
        "positives in the batch, own hard negatives", mean, "mean",
        stage={"loss": {"cross_negatives": False, "temperature": TAU}}, cross_negatives=False,
    )
    yield case(
        "both directions", mean, "mean", stage={"loss": {"both_directions": True, "temperature": TAU}},
        both_directions=True,
    )

    widths, weights = [64, side.plain.embeddings().shape[1]], [1.0, 0.5]

    def nested():
        losses = {width: contrastive(side, rows, mean, width=width) for width in widths}
        return [(losses[widths[0]][0], reference.matryoshka(lambda width: losses[width][1], widths, weights))]

    yield Case(
        "Matryoshka", nested, {"base": str(side.base), "pooling": {"mode": "mean"}},
        {"loss": {"temperature": TAU}, "matryoshka": {"dimensions": widths, "weights": weights}}, files,
    )
    yield from masked_cases(side, rows)


def masked_cases(side, rows):
    """Texts that stand twice in a batch: a source without in-batch negatives may bring copies of another's texts."""
    mixing, lone = rows[:5], [row | {"in_batch": False} for row in rows[5:]]

    def masked(name, mixing, lone):
        """`mixing` rows may have several positives, of which Kiln draws one."""
        several = [i for i, row in enumerate(mixing) if len(row["known"]) > 1]

        def losses():
            for drawn in {0, *range(len(mixing[several[0]]["known"]) if several else 1)}:
                batch = [
                    row | {"pos": row["known"][drawn]} if several and i == several[0] else row
                    for i, row in enumerate(mixing)
                ]
                yield contrastive(side, batch + lone, reference.mean)

        files = {"mixing.jsonl": for_kiln(mixing), "lone.jsonl": for_kiln(lone)}
        data = [{"path": "mixing.jsonl", "weight": 5.0}, {"path": "lone.jsonl", "weight": 1.0, "in_batch": False}]
        return Case(
            name, lambda: list(losses()), {"base": str(side.base), "pooling": {"mode": "mean"}},
            {"data": data, "loss": {"temperature": TAU}}, files, seeds=(1, 2, 3, 4),
        )

    copy, copied = dict(lone[0]), dict(lone[1])
    copy.update(pos=mixing[0]["pos"], known=[mixing[0]["pos"]])
    copied.update(neg=[mixing[1]["pos"]])
    yield masked("copies of positives masked", mixing, [copy, copied, *lone[2:]])
    both = dict(mixing[2])
    both.update(known=[both["pos"], both["second"]])
    other = dict(lone[0])
    other.update(neg=[both["second"]])
    third = dict(lone[1])
    third.update(neg=[both["pos"]])
    yield masked("known positives masked", [*mixing[:2], both, *mixing[3:]], [other, third, *lone[2:]])


def reconstruction_cases(side):
    rows = made_up()
    files = {"rows.jsonl": for_kiln(rows)}
    eos_id = side.tokenizer.eos_token_id

    def case(name, alpha=0.2, full=False, base=None, decoder=None, head=None, prompt="", data=None, **settings):
        reader = side.reader(add_eos=True)

        def loss():
            queries = [reader.read(row["query"], prompt) for row in rows]
            documents = [reader.read(row["pos"]) for row in rows]
            count = sum(len(text.ids) for text in queries + documents)
            eos = [eos_id] if settings.get("predict_eos") else []
            reduction = settings.get("reduction", "token_mean")
            value = reference.reconstruction(decoder or side.plain, queries, documents, alpha, reduction, head, eos)
            return [(count, value)]

        model = {"base": str(base or side.eos_base), "pooling": {"mode": "last_token"}}
        if base:
            model |= {"add_eos": True} | adapters("q_proj")
        stage = {"objective": "reconstruction", "reconstruction": {"alpha": alpha, **settings}} | (data or {})
        return Case(f"reconstruction, {name}", loss, model, stage, files, full)

    yield case("alpha 0.2")
    yield case("alpha 0.2, gradient", full=True)
    yield case("alpha 0", alpha=0.0)
    yield case("alpha 1", alpha=1.0)
    yield case("sum over tokens", reduction="token_sum")
    yield case("EOS written too", predict_eos=True)
    prompted = {"data": [{"path": "rows.jsonl", "query_prompt": PROMPT}]}
    yield case("instructions read", prompt=PROMPT, data=prompted, instructions=True)
    folder, tiny = side.tiny("own-head", tied=False)
    yield case("a head of its own", base=folder, decoder=side.decoder(tiny.model), head=tiny.lm_head.weight)


def distillation_cases(side, latent_teacher):
    """Student: the base with PEFT's adapters. Teacher: the base, its mean. `latent_teacher`: a folder with a latent head on the
    base, and the head."""
    rows = made_up()
    files = {"rows.jsonl": for_kiln(rows)}
    # Own texts are cut; the teacher's vectors are made by the teacher, which cuts nothing here.
    reader, long = side.reader(), side.reader(8192)
    texts = [row["query"] for row in rows] + [text for row in rows for text in (row["pos"], *row["neg"])]

    def states(decoder, causal=True):
        return decoder([reader.read(text) for text in texts], causal)

    def vectors(decoder, reader):
        return reference.mean(decoder([reader.read(text) for text in texts], True))

    def case(name, loss, objective="distillation", teacher=None, **settings):
        model = {"base": str(side.adapters), "pooling": {"mode": "mean"}}
        settings = {"teacher": str(teacher or side.teacher)} | settings
        stage = {"objective": objective, "distillation": settings, "loss": {"temperature": TAU}}

        def torch_side():
            return [(sum(len(reader.read(text).ids) for text in texts), loss())]

        return Case(f"distillation, {name}", torch_side, model, stage, files)

    none = {"vectors": 0.0}
    yield case(
        "vectors", lambda: reference.vector_distillation(vectors(side.adapted, reader), vectors(side.plain, long))
    )
    yield case(
        "scores",
        lambda: reference.score_distillation(vectors(side.adapted, reader), vectors(side.plain, long), 0.1),
        scores=1.0, temperature=0.1, **none,
    )

    def layers(*pairs):
        student, teacher = states(side.adapted), states(side.plain)
        return sum(reference.state_distillation(student.layers[s], teacher.layers[t], student.valid) for s, t in pairs)

    count = side.plain.model.config.num_hidden_layers
    yield case("two pairs of layers", lambda: layers((3, 4), (0, 1)), layers={"pairs": [[3, 4], [0, 1]]}, **none)
    yield case("last layers", lambda: layers((count, count)), layers="last", **none)
    yield case(
        "beside InfoNCE",
        lambda: contrastive(side, rows, reference.mean, decoder=side.adapted)[1]
        + 0.3 * (layers((count, count)) + 2 * reference.vector_distillation(
            vectors(side.adapted, reader), vectors(side.plain, long))),
        objective="contrastive", alpha=0.3, vectors=2.0, layers="last",
    )
    if latent_teacher:
        folder, head = latent_teacher

        def appendix():
            # The teacher is bidirectional, the student causal.
            teacher = states(side.plain, causal=False)
            return reference.appendix_a(states(side.adapted), teacher, head.latent_states(teacher))

        yield case(APPENDIX_A.removeprefix("distillation, "), appendix, teacher=folder, layers="appendix_a", **none)


def scored_cases(side):
    """Scores of a teacher in the rows, pairs with scores, and a guide; the base with PEFT's adapters is the student."""
    draw = random.Random(41)
    rows = made_up()
    reader, long = side.reader(), side.reader(8192)
    model = {"base": str(side.adapters), "pooling": {"mode": "mean"}}

    def vectors(texts, decoder=side.adapted, reader=reader):
        return F.normalize(reference.mean(decoder([reader.read(text) for text in texts], True)), dim=1)

    def count(texts):
        return sum(len(reader.read(text).ids) for text in texts)

    def of_rows(key):
        return [row[key] if key != "neg" else row[key][0] for row in rows]

    pairs = [(row["query"], row["pos"], draw.choice([0.0, 1.5, 3.0, 5.0])) for row in rows]
    scored = {"rows.jsonl": [{"text1": a, "text2": b, "score": score} for a, b, score in pairs]}
    for name, similarity in [("cosent", F.cosine_similarity), ("angle", reference.angle_similarity)]:
        def ordered(similarity=similarity):
            left, right = vectors([a for a, _, _ in pairs]), vectors([b for _, b, _ in pairs])
            value = reference.ordered_pairs(similarity(left, right), [score for _, _, score in pairs], 20.0)
            return [(count([text for a, b, _ in pairs for text in (a, b)]), value)]

        stage = {"objective": "similarity", "similarity": {"loss": name, "scale": 20.0}}
        yield Case(f"similarity, {name}", ordered, model, stage, scored)

    given = [(round(draw.uniform(4, 9), 3), round(draw.uniform(-3, 5), 3)) for _ in rows]
    marked = {"rows.jsonl": [row | {"pos_scores": [up], "neg_scores": [down]}
                             for row, (up, down) in zip(for_kiln(rows), given)]}
    texts = [text for row in rows for text in (row["query"], row["pos"], *row["neg"])]

    def margin(scale):
        q, p, n = vectors(of_rows("query")), vectors(of_rows("pos")), vectors(of_rows("neg"))
        return reference.margin_mse(scale * q, p, n, torch.tensor([up - down for up, down in given]))

    alone = {"margin_mse": {"weight": 1.0, "contrastive": 0.0, "scale": 10.0}}
    yield Case("margin MSE", lambda: [(count(texts), margin(10.0))], model, alone, marked)
    beside = {"margin_mse": {"weight": 0.5, "contrastive": 1.0, "scale": 10.0}, "loss": {"temperature": TAU}}
    yield Case(
        "margin MSE, beside InfoNCE",
        lambda: [(count(texts), 0.5 * margin(10.0) + contrastive(side, rows, reference.mean, decoder=side.adapted)[1])],
        model, beside, marked,
    )

    def guided(less):
        of = [[vectors(of_rows(key), *who) for key in ("query", "pos", "neg")]
              for who in [(side.adapted, reader), (side.plain, long)]]
        value, hidden = reference.guided_info_nce(*of, TAU, less)
        assert 0 < hidden < len(rows) * (2 * len(rows) - 1), f"the guide hides {hidden} texts"
        return [(count(texts), value)]

    for less in [0.0, 0.05]:
        stage = {"distillation": {"teacher": str(side.teacher), "vectors": 0.0, "guide": less}, "loss": {"temperature": TAU}}
        files = {"rows.jsonl": for_kiln(rows)}
        yield Case(f"InfoNCE with a guide, {less}", lambda less=less: guided(less), model, stage, files)


def mntp_cases(side):
    """Which tokens Kiln masks is drawn; with `mask = 1.0` all of a text's own are, and nothing is left to draw. We take
    it that every masked token is replaced by `mask_token` (LLM2Vec's collator may leave a tenth as they are and replace
    a tenth by others), that what stands around a text is neither masked nor predicted, that a token without one before
    it is left alone, and that the loss is the mean over the batch's masked tokens."""
    rows = [{"text": text} for row in made_up()[:4] for text in (row["query"], row["pos"])]
    blank = side.tokenizer.convert_tokens_to_ids("_")

    def case(name, model, full=False, **settings):
        reader = side.reader(**settings)

        def loss():
            texts = [reader.read(row["text"]) for row in rows]
            return [(sum(len(text.ids) for text in texts), reference.mntp(side.plain, texts, blank))]

        model = {"base": str(side.base), "pooling": {"mode": "mean"}, "attention": "bidirectional"} | model
        stage = {"objective": "mntp", "mntp": {"mask": 1.0, "mask_token": "_"}}
        return Case(f"MNTP, {name}", loss, model, stage, {"rows.jsonl": rows}, full)

    yield case("BOS and EOS", {"add_bos": True, "add_eos": True}, add_bos=True, add_eos=True)
    yield case("neither", {})
    yield case("BOS, gradient", {"add_bos": True}, full=True, add_bos=True)


# ------------------------------------------------------------------------------------------------ the comparison


class Table:
    def __init__(self, allow_missing):
        self.allow_missing, self.failed, self.missing = allow_missing, 0, 0
        print(f"{'objective':<55} {'torch':>12} {'kiln':>12} {'difference':>11}  ok")

    def line(self, name, torch_value, kiln_value, difference, ok, note=""):
        self.failed += not ok
        shown = [value if isinstance(value, str) else f"{value:.7f}" for value in (torch_value, kiln_value)]
        end = "yes" if ok else "NO"
        print(f"{name:<55} {shown[0]:>12} {shown[1]:>12} {difference:>11.1e}  {end}{note}", flush=True)

    def broken(self, name, error):
        """A case that came to no number."""
        if isinstance(error, Missing):
            self.missing += 1
            self.failed += not self.allow_missing
        else:
            self.failed += 1
        kind = "not in this binary" if isinstance(error, Missing) else "failed"
        print(f"{name:<55} {kind}: {error}", flush=True)


def gradient_norm(decoder):
    norms = [parameter.grad.norm() for parameter in decoder.model.parameters() if parameter.grad is not None]
    decoder.model.zero_grad(set_to_none=True)
    return torch.stack(norms).norm().item()


def compare(case, kiln, side, table):
    # The case's own adapters go before.
    trained = {} if case.full else side.lora
    with contextlib.nullcontext() if case.full else torch.no_grad():
        expected = case.torch_side()
    norm = None
    if case.full:
        expected[0][1].backward()
        norm = gradient_norm(side.plain)
    expected = [(tokens, loss.item()) for tokens, loss in expected]
    for seed in case.seeds:
        stage = {"hard_negatives": 1} if case.stage.get("objective", "") not in ("reconstruction", "mntp") else {}
        step, _ = kiln.train(trained | case.model, stage | case.stage, case.files, seed)
        here = [loss for tokens, loss in expected if tokens == step["tokens"]]
        if len(here) == 1:
            break
    else:
        counts = " or ".join(str(tokens) for tokens, _ in expected)
        return table.line(case.name, f"{counts} tok.", f"{step['tokens']} tok.", float("nan"), False)
    difference = abs(step["loss"] - here[0]) / abs(here[0])
    table.line(case.name, here[0], step["loss"], difference, difference <= CLOSE)
    if norm:
        ours = step["grad_norm"]
        difference = abs(ours - norm) / norm
        table.line("  its norm", norm, ours, difference, difference <= GRADIENT_CLOSE or nearer(case, side, ours, norm))


def nearer(case, side, ours, theirs):
    """Whether our gradient's norm is nearer to that in double precision than PyTorch's in f32 is. Texts all of whose
    tokens are masked are one token over and over, whose gradient is badly conditioned: PyTorch's own f32 is 0.6 % off."""
    side.plain.model.double()
    [(_, loss), *_] = case.torch_side()
    loss.backward()
    exact = gradient_norm(side.plain)
    side.plain.model.float()
    print(f"  its norm in double precision: {exact:.7f}")
    return abs(ours - exact) <= abs(theirs - exact)


def least_cosine(table, name, ours, theirs, bound):
    """Whether the vectors of both sides are the same."""
    cosines = F.cosine_similarity(ours.double(), theirs.double(), dim=1)
    difference = 1 - cosines.min().item()
    worst = cosines.argmin().item()
    note = "" if difference <= bound else f" (text {worst} of {len(cosines)})"
    table.line(name, "vectors", "vectors", difference, difference <= bound, note)


def heads(side, kiln, table, wanted):
    """Vectors of the heads with parameters; the folder and the head of a model with latent attention."""
    rows = made_up()
    texts = [text for row in rows for text in (row["query"], row["pos"])]
    size = {"latents": 16, "heads": 4, "head_dim": 24}
    latent_teacher = None
    for mode, attention, more in [
        ("latent_attention", "bidirectional", {}),
        ("latent_attention", "causal", {"feed_forward": "gelu"}),
        ("last_layer_trainable", "bidirectional", {"latent_size": 48}),
        ("multi_layer_trainable", "causal", {"latent_size": 48}),
        ("multi_layer_trainable", "bidirectional", {}),
    ]:
        name = f"{mode}, {attention}" + (", GELU" if more.get("feed_forward") else "")
        needed = wanted(APPENDIX_A) and latent_teacher is None and mode == "latent_attention" and not more
        if not wanted(name) and not needed:
            continue
        try:
            model = {"base": str(side.base), "pooling": {"mode": mode, **size, **more}, "attention": attention}
            stage = {"loss": {"temperature": TAU}, "hard_negatives": 1}
            _, folder = kiln.train(model | side.lora, stage, {"rows.jsonl": for_kiln(rows)}, save=True)
            head = reference.Block(
                load_file(folder / "1_Pooling/model.safetensors"), size["heads"], more.get("feed_forward", "geglu")
            )
            with torch.no_grad():
                states = side.plain([side.reader().read(text) for text in texts], attention == "causal")
                ours = getattr(head, mode)(states)
            if wanted(name):
                least_cosine(table, name, ours, kiln.embed(folder, texts), SAME_VECTOR)
            if needed or (latent_teacher is None and not more):
                latent_teacher = (folder, head)
        except (Missing, RuntimeError) as error:
            table.broken(name, error)
    return latent_teacher


def masked_pooling(side, kiln, table):
    """NV-Embed's instruction out of the mean, on a tiny random model: the release counts the instruction's tokens by
    themselves, without BOS, and leaves that many leading tokens out."""
    folder, tiny = side.tiny("masked-pooling")
    decoder = side.decoder(tiny.model)
    rows = made_up()
    texts = [text for row in rows for text in (row["query"], row["pos"])]
    size = {"latents": 8, "heads": 4, "head_dim": 16}
    for what, prompt in [("ends in a space", PROMPT), ("ends in a colon", PROMPT.rstrip())]:
        name = f"NV-Embed's masked pooling, prompt {what}"
        try:
            model = {
                "base": str(folder), "pooling": {"mode": "latent_attention", **size}, "attention": "bidirectional",
                "add_bos": True, "add_eos": True, "instruction": "masked_without_bos", "prompts": {"query": prompt},
            }
            stage = {"loss": {"temperature": TAU}, "hard_negatives": 1}
            _, saved = kiln.train(model, stage, {"rows.jsonl": for_kiln(rows)}, save=True)
            head = reference.Block(load_file(saved / "1_Pooling/model.safetensors"), size["heads"])
            reader = side.reader(add_bos=True, add_eos=True, instruction="masked_without_bos")
            with torch.no_grad():
                ours = head.latent_attention(decoder([reader.read(text, prompt) for text in texts], causal=False))
            least_cosine(table, name, ours, kiln.embed(saved, texts, "--prompt-name", "query"), SAME_VECTOR)
        except (Missing, RuntimeError) as error:
            table.broken(name, error)


def mixed_texts(count=100):
    """Scripts, emoji, white space, code, long and empty texts, drawn with a fixed seed."""
    draw = random.Random(100)
    words = {
        "Latin": "the Größe naïve façade łódź İstanbul coöperate don't it's 3rd re-use e.g. U.S.A. ﬁne".split(),
        "Greek": "λόγος ἄνθρωπος Σίσυφος ΟΔΟΣ".split(),
        "Cyrillic": "Москва ёлка привет щука".split(),
        "Arabic and Hebrew": "مرحبا العَرَبِيَّة שלום עִבְרִית".split(),
        "Indic": "नमस्ते क्षत्रिय বাংলা தமிழ்".split(),
        "East Asian": "東京 日本語テスト 안녕하세요 中文字符 ｆｕｌｌ　ｗｉｄｔｈ".split(" "),
        "Thai": "สวัสดี ภาษาไทย".split(),
        "emoji": "🙂 👩‍👩‍👧 🏳️‍🌈 👍🏽 ✈︎ 🇫🇷".split(),
        "numbers": "3.14159 1,000,000 0x1F 2024-02-29 ½ Ⅷ ٣٤ -7 1e-12".split(),
        "symbols": "§ ¶ € -- … “quoted” 'x' <b>bold</b> a/b\\c #tag @name 100% ~`^|".split(),
        "special": "<|im_end|> <|endoftext|> <|im_start|> [INST] [/INST] </s> <s> [MASK] _ __".split(),
    }
    code = ["def f(x):\n    return x ** 2\n", "for (int i = 0; i < n; ++i) {\n\ta[i] += b[i];\n}", '{"k": [1, null]}']
    spaces = [" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u2003", "\u200b", "   "]
    texts = ["", " ", "\n\n ", "a", " leading", "trailing ", "e\u0301 \u00e9", "\ufeffmark", "a\u0000b", *code]
    while len(texts) < count:
        kinds = draw.sample(list(words), draw.randint(1, 3))
        length = draw.choice([1, 3, 8, 20, 60, 300])
        parts = [draw.choice(words[draw.choice(kinds)]) for _ in range(length)]
        spaced = draw.random() < 0.3
        text = "".join(part + (draw.choice(spaces) if spaced else " ") for part in parts)
        texts.append(text[: draw.choice([-1, None])])
    return texts[:count]


def fingerprints(side):
    """A model whose state at a token is that token's random vector, whatever stands around it."""
    folder, model = side.tiny("fingerprints", num_hidden_layers=1)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    model.save_pretrained(folder)
    return folder, side.decoder(model.model)


def tokens(side, kiln, table):
    """Tokens and vectors of 100 texts: Kiln's beside those of transformers' tokenizer, and beside transformers and
    sentence-transformers reading what Kiln saved."""
    from sentence_transformers import SentenceTransformer

    folder, decoder = fingerprints(side)
    texts = mixed_texts()
    for name, settings, padding, prompt in [
        ("as the base's files", {}, "right", ""),
        ("after a prompt", {}, "right", PROMPT),
        ("BOS and EOS", {"add_bos": True, "add_eos": True}, "right", ""),
        ("BOS, suffix, EOS, left", {"add_bos": True, "text_suffix": SUFFIX, "add_eos": True}, "left", ""),
        ("EOS after a prompt, left", {"add_eos": True}, "left", PROMPT),
    ]:
        name = f"tokens of 100 texts, {name}"
        try:
            model = {"base": str(folder), "pooling": {"mode": "weighted_mean"}, **settings}
            if padding == "left":
                model["padding_side"] = "left"
            if prompt:
                model["prompts"] = {"query": prompt}
            stage = {"loss": {"temperature": TAU}, "hard_negatives": 1}
            _, saved = kiln.train(model, stage, {"rows.jsonl": for_kiln(made_up())}, save=True)
            kilns = kiln.embed(saved, texts, *(["--prompt-name", "query"] if prompt else []))
        except (Missing, RuntimeError) as error:
            table.broken(name, error)
            continue
        reader = side.reader(**settings)
        read = [reader.read(text, prompt) for text in texts]
        with torch.no_grad():
            expected = reference.weighted_mean(decoder(read, causal=True))
        least_cosine(table, name, expected, kilns, SAME_TOKENS)
        again = AutoTokenizer.from_pretrained(saved)
        theirs = [again(prompt + text, truncation=True, max_length=CUT).input_ids for text in texts]
        wrong = [i for i, (ids, own) in enumerate(zip(theirs, read)) if ids and ids != own.ids]
        side_kept = again.padding_side == padding
        note = "" if not wrong else f" (text {wrong[0]}: {theirs[wrong[0]][-4:]} for {read[wrong[0]].ids[-4:]})"
        note += "" if side_kept else f" (padding_side {again.padding_side})"
        same = not wrong and side_kept
        table.line("  transformers' tokenizer on the saved model", "ids", "ids", len(wrong), same, note)
        # A text of no token is nothing to sentence-transformers.
        full = [i for i, ids in enumerate(theirs) if ids]
        library = SentenceTransformer(str(saved), device="cpu")
        vectors = library.encode([texts[i] for i in full], prompt=prompt or None, convert_to_tensor=True)
        least_cosine(table, "  sentence-transformers on the saved model", vectors, kilns[full], SAME_TOKENS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", metavar="FOLDER")
    which.add_argument("--tiny", action="store_true", help="a random model that is made here")
    parser.add_argument("--kiln", default="target/release/kiln", metavar="BINARY")
    parser.add_argument("--only", default="", metavar="WORDS", help="cases whose name has one of these (commas between)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--allow-missing", action="store_true", help="do not fail for what the binary does not know")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    words = [word.strip() for word in args.only.split(",")]

    def wanted(name):
        return any(word in name for word in words)

    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        side = Side(args.model or tiny_base(folder / "base"), folder)
        kiln = Kiln(args.kiln, folder, args.threads)
        table = Table(args.allow_missing)
        latent_teacher = heads(side, kiln, table, wanted)
        cases = [
            *contrastive_cases(side), *reconstruction_cases(side), *distillation_cases(side, latent_teacher),
            *scored_cases(side), *mntp_cases(side),
        ]
        for case in cases:
            if wanted(case.name):
                try:
                    compare(case, kiln, side, table)
                except (Missing, RuntimeError) as error:
                    table.broken(case.name, error)
        if wanted("NV-Embed's masked pooling"):
            masked_pooling(side, kiln, table)
        if wanted("tokens of 100 texts"):
            tokens(side, kiln, table)
    missing = f", {table.missing} not in this binary" if table.missing else ""
    print(f"{table.failed} failed{missing}, in {time.monotonic() - start:.0f} seconds")
    sys.exit(1 if table.failed else 0)


if __name__ == "__main__":
    main()
