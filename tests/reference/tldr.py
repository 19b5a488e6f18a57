"""The peer of recipes/examples/tldr.toml: the same fine-tuning with sentence-transformers, and scores of any model.

    python tldr.py train MODEL OUT DATA      # the two stages; writes OUT/handbook, OUT/blend, OUT/times.json
    python tldr.py score DATA MODEL [MODEL..]  # tldr dev nDCG@10, Banking77 test accuracy, STS-B dev Spearman

DATA holds what the recipe reads: tldr/ (BEIR), tldr-mined.jsonl, banking77/, stsb/. Needs, from PyPI,
sentence-transformers, datasets, accelerate, zstandard, scikit-learn and scipy. Dropout is off, as in Kiln's recipe.
"""

import io
import json
import random
import sys
import time

import numpy as np
import torch
import zstandard
from sentence_transformers import SentenceTransformer

LENGTH = 128
BATCH = 32


def lines(path):
    if path.endswith(".zst"):
        stream = zstandard.ZstdDecompressor().stream_reader(open(path, "rb"))
        return [json.loads(line) for line in io.TextIOWrapper(stream, encoding="utf8")]
    return [json.loads(line) for line in open(path, encoding="utf8")]


class OwnNegatives(torch.nn.Module):
    """InfoNCE over a query's own positive and negatives only (in-batch negatives off)."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, features, labels):
        query, *candidates = [self.model(part)["sentence_embedding"] for part in features]
        cosine = torch.nn.functional.cosine_similarity
        scores = torch.stack([cosine(query, candidate) for candidate in candidates], 1) / 0.05
        return torch.nn.functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))


def train(base, out, data, steps):
    from datasets import Dataset
    from sentence_transformers import (SentenceTransformerTrainer, SentenceTransformerTrainingArguments,
                                       losses)
    from sentence_transformers.training_args import BatchSamplers, MultiDatasetBatchSamplers
    from transformers import TrainerCallback

    random.seed(1)
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = SentenceTransformer(base, device="cpu", config_kwargs=no_dropout)
    model.max_seq_length = LENGTH
    held = {row["text"].lower() for row in lines(f"{data}/banking77/test.jsonl.zst")}
    for row in lines(f"{data}/stsb/dev.jsonl.zst"):
        held |= {row["sentence1"].lower(), row["sentence2"].lower()}

    mined = lines(f"{data}/tldr-mined.jsonl")

    def handbook(count):
        rows = [row for row in mined if len(row["neg"]) >= count]
        columns = {"anchor": [row["query"] for row in rows], "positive": [row["pos"][0] for row in rows]}
        columns |= {f"negative_{k}": [row["neg"][k] for row in rows] for k in range(count)}
        return Dataset.from_dict(columns)

    bank = [row for row in lines(f"{data}/banking77/train.jsonl.zst") if row["text"].lower() not in held]
    classes = {}
    for row in bank:
        classes.setdefault(row["label"], []).append(row["text"])
    triplets = {"anchor": [], "positive": [], "negative_0": [], "negative_1": []}
    for row in bank:
        triplets["anchor"].append(row["text"])
        triplets["positive"].append(random.choice([text for text in classes[row["label"]] if text != row["text"]]))
        for k in range(2):
            other = random.choice([label for label in classes if label != row["label"]])
            triplets[f"negative_{k}"].append(random.choice(classes[other]))
    pairs = {"anchor": [], "positive": []}
    for row in lines(f"{data}/stsb/train.jsonl.zst"):
        a, b = row["sentence1"], row["sentence2"]
        if row["score"] >= 4 and a.lower() not in held and b.lower() not in held:
            pairs["anchor"] += [a, b]
            pairs["positive"] += [b, a]

    class Clock(TrainerCallback):
        def __init__(self):
            self.seconds = []

        def on_step_begin(self, *args, **kwargs):
            self.begun = time.perf_counter()

        def on_step_end(self, *args, **kwargs):
            self.seconds.append(time.perf_counter() - self.begun)

    ranking = losses.MultipleNegativesRankingLoss(model, scale=20.0)
    stages = [
        ("handbook", steps[0], 2e-5, handbook(1), ranking),
        ("blend", steps[1], 1e-5,
         {"tldr": handbook(2), "banking77": Dataset.from_dict(triplets), "stsb": Dataset.from_dict(pairs)},
         {"tldr": ranking, "banking77": OwnNegatives(model), "stsb": ranking}),
    ]
    times = {}
    for name, count, lr, sets, loss in stages:
        if count == 0:
            continue
        arguments = SentenceTransformerTrainingArguments(
            output_dir=out, max_steps=count, per_device_train_batch_size=BATCH, learning_rate=lr,
            warmup_steps=count // 10, lr_scheduler_type="linear", weight_decay=0.0, max_grad_norm=1.0, seed=1,
            logging_steps=10, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True,
            batch_sampler=BatchSamplers.NO_DUPLICATES,
            multi_dataset_batch_sampler=MultiDatasetBatchSamplers.ROUND_ROBIN)
        clock = Clock()
        SentenceTransformerTrainer(model=model, args=arguments, train_dataset=sets, loss=loss,
                                   callbacks=[clock]).train()
        model.save(f"{out}/{name}")
        times[name] = {"steps": len(clock.seconds), "mean_s": float(np.mean(clock.seconds)),
                       "median_s": float(np.median(clock.seconds))}
        print(name, times[name], flush=True)
    json.dump(times, open(f"{out}/times.json", "w"))


def score(data, models):
    from scipy.stats import spearmanr
    from sklearn.linear_model import LogisticRegression

    corpus = lines(f"{data}/tldr/corpus.jsonl")
    queries = lines(f"{data}/tldr/queries.jsonl")
    relevant = {}
    for line in open(f"{data}/tldr/qrels/dev.tsv").read().splitlines()[1:]:
        query, document, grade = line.split("\t")
        relevant.setdefault(query, set()).add(document)
    sts = lines(f"{data}/stsb/dev.jsonl.zst")
    bank = {split: lines(f"{data}/banking77/{split}.jsonl.zst") for split in ("train", "test")}
    for path in models:
        model = SentenceTransformer(path, device="cpu")
        model.max_seq_length = LENGTH

        def encode(texts):
            return model.encode(texts, batch_size=64, normalize_embeddings=True, show_progress_bar=False)

        pages = encode([(row.get("title", "") + " " + row["text"]).strip() for row in corpus])
        asked = [row for row in queries if row["_id"] in relevant]
        ranks = np.argsort(-(encode([row["text"] for row in asked]) @ pages.T), axis=1)[:, :10]
        gains = []
        for row, found in zip(asked, ranks):
            hits = [1.0 if corpus[at]["_id"] in relevant[row["_id"]] else 0.0 for at in found]
            best = sum(1 / np.log2(2 + at) for at in range(min(10, len(relevant[row["_id"]]))))
            gains.append(sum(hit / np.log2(2 + at) for at, hit in enumerate(hits)) / best)
        a, b = encode([row["sentence1"] for row in sts]), encode([row["sentence2"] for row in sts])
        spearman = spearmanr((a * b).sum(1), [row["score"] for row in sts]).statistic
        features = {split: encode([row["text"] for row in rows]) for split, rows in bank.items()}
        labels = {split: [row["label"] for row in rows] for split, rows in bank.items()}
        classifier = LogisticRegression(max_iter=2000).fit(features["train"], labels["train"])
        accuracy = classifier.score(features["test"], labels["test"])
        print(json.dumps({"model": path, "tldr_dev_ndcg_at_10": round(float(np.mean(gains)), 4),
                          "banking77_test_accuracy": round(float(accuracy), 4),
                          "stsb_dev_spearman": round(float(spearman), 4)}), flush=True)


if sys.argv[1] == "train":
    steps = [int(count) for count in sys.argv[5].split(",")] if len(sys.argv) > 5 else [200, 120]
    train(sys.argv[2], sys.argv[3], sys.argv[4], steps)
else:
    score(sys.argv[2], sys.argv[3:])
