"""Evaluates local data with the real mteb package, beside `kiln eval`.

    python3 mteb_local.py SUITE.toml DATA_FOLDER --st MODEL_FOLDER        sentence-transformers
    python3 mteb_local.py SUITE.toml DATA_FOLDER --server URL --model M   an OpenAI-compatible server

Reads a suite of `kiln eval --suite`, makes an mteb task of each of its tasks, and prints one
JSON object: for each task mteb's scores. `--only A,B` picks tasks.
"""

import argparse
import csv
import gzip
import io
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import mteb  # noqa: E402
import numpy as np  # noqa: E402
from datasets import Dataset, DatasetDict  # noqa: E402
from mteb.abstasks.classification import AbsTaskClassification  # noqa: E402
from mteb.abstasks.clustering import AbsTaskClustering  # noqa: E402
from mteb.abstasks.clustering_legacy import AbsTaskClusteringLegacy  # noqa: E402
from mteb.abstasks.pair_classification import AbsTaskPairClassification  # noqa: E402
from mteb.abstasks.retrieval import AbsTaskRetrieval  # noqa: E402
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData  # noqa: E402
from mteb.abstasks.sts import AbsTaskSTS  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402
from mteb.abstasks.text.summarization import AbsTaskSummarization  # noqa: E402
from mteb.models.model_meta import ModelMeta  # noqa: E402


def read(path):
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    if path.suffix == ".zst":
        data = subprocess.run(["zstd", "-dc", str(path)], check=True, capture_output=True).stdout
    text = io.StringIO(data.decode())
    if ".tsv" in path.name:
        return list(csv.DictReader(text, delimiter="\t"))
    return [json.loads(line) for line in text if line.strip()]


def find(folder, name):
    for ending in ("", ".gz", ".zst"):
        if (folder / f"{name}{ending}").is_file():
            return read(folder / f"{name}{ending}")
    raise FileNotFoundError(f"{folder}/{name}")


def metadata(task, kind, main_score):
    return TaskMetadata(
        name=task["name"], description="local", type=kind, category="t2t", modalities=["text"],
        eval_splits=[task["split"]], eval_langs=["eng-Latn"], main_score=main_score,
        dataset={"path": "local/local", "revision": "1"}, date=("2000-01-01", "2020-01-01"),
        domains=["Written"], task_subtypes=[], license="not specified", annotations_creators="derived",
        dialect=[], sample_creation="found", bibtex_citation="", reference=None,
    )  # fmt: skip


def make(task, folder):
    """An mteb task of a suite's task."""
    kind, split, place = task["kind"], task["split"], folder / task["path"]

    if kind == "sts":
        rows = find(place, f"{split}.jsonl")

        class Local(AbsTaskSTS):
            metadata = globals()["metadata"](task, "STS", "cosine_spearman")
            min_score, max_score = 0, 5

            def load_data(self, **_):
                keep = ("sentence1", "sentence2", "score")
                self.dataset = DatasetDict({split: Dataset.from_list([{k: row[k] for k in keep} for row in rows])})
                self.data_loaded = True

    elif kind == "pair_classification":
        rows = find(place, f"{split}.jsonl")

        class Local(AbsTaskPairClassification):
            metadata = globals()["metadata"](task, "PairClassification", "max_ap")
            label_column_name = "labels"

            def load_data(self, **_):
                row = lambda r: {"sentence1": r["sentence1"], "sentence2": r["sentence2"], "labels": int(r["label"])}  # noqa: E731
                self.dataset = DatasetDict({split: Dataset.from_list([row(r) for r in rows])})
                self.data_loaded = True

    elif kind == "classification" and place.is_file():
        rows = read(place)
        number = {name: at for at, name in enumerate(sorted({str(row["label"]) for row in rows}))}

        class Local(AbsTaskClassification):
            metadata = globals()["metadata"](task, "Classification", "accuracy")
            samples_per_label = task.get("samples_per_label", 8)
            is_cross_validation, train_split = True, split

            def load_data(self, **_):
                row = lambda r: {"text": r["text"], "label": number[str(r["label"])]}  # noqa: E731
                self.dataset = DatasetDict({split: Dataset.from_list([row(r) for r in rows])})
                self.data_loaded = True

    elif kind == "classification":
        parts = {name: find(place, f"{name}.jsonl") for name in ("train", split)}
        # Numbers in the labels' order, so that the binary tasks have a positive label.
        names = sorted({str(row["label"]) for rows in parts.values() for row in rows})
        number = {name: at for at, name in enumerate(names)}

        class Local(AbsTaskClassification):
            metadata = globals()["metadata"](task, "Classification", "accuracy")
            samples_per_label = task.get("samples_per_label", 8)
            n_experiments = task.get("experiments", 10)

            def load_data(self, **_):
                row = lambda r: {"text": r["text"], "label": number[str(r["label"])]}  # noqa: E731
                self.dataset = DatasetDict({k: Dataset.from_list([row(r) for r in rows]) for k, rows in parts.items()})
                self.data_loaded = True

    elif kind == "clustering" and isinstance(find(place, f"{split}.jsonl")[0].get("sentences"), list):
        rows = find(place, f"{split}.jsonl")

        class Local(AbsTaskClusteringLegacy):
            metadata = globals()["metadata"](task, "Clustering", "v_measure")

            def load_data(self, **_):
                keep = ("sentences", "labels")
                self.dataset = DatasetDict({split: Dataset.from_list([{k: row[k] for k in keep} for row in rows])})
                self.data_loaded = True

    elif kind == "clustering":
        rows = find(place, f"{split}.jsonl")

        class Local(AbsTaskClustering):
            metadata = globals()["metadata"](task, "Clustering", "v_measure")
            max_fraction_of_documents_to_embed = None
            max_document_to_embed = task.get("documents")
            n_clusters = task.get("experiments", 10)

            def load_data(self, **_):
                row = lambda r: {"sentences": r["text"], "labels": str(r["label"])}  # noqa: E731
                self.dataset = DatasetDict({split: Dataset.from_list([row(r) for r in rows])})
                self.data_loaded = True

    elif kind in ("retrieval", "reranking"):
        if kind == "retrieval":
            text = lambda r: {"id": r["_id"], "title": r.get("title", ""), "text": r["text"]}  # noqa: E731
            corpus = [text(row) for row in find(place, "corpus.jsonl")]
            queries = [{"id": row["_id"], "text": row["text"]} for row in find(place, "queries.jsonl")]
            relevant, top_ranked = {}, None
            for row in find(place, f"qrels/{split}.tsv"):
                relevant.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
            queries = [row for row in queries if row["id"] in relevant]
        else:
            corpus, queries, relevant, top_ranked = [], [], {}, {}
            for row in find(place, f"{split}.jsonl"):
                if not row["positive"] or not row["negative"]:
                    continue
                # mteb's ids for the older format.
                query = f"{split}_query{len(queries)}"
                queries.append({"id": query, "text": row["query"]})
                for name, grade in (("apositive", 1), ("negative", 0)):
                    for at, text in enumerate(row[name.removeprefix("a")]):
                        document = f"{name}_{query}_{at:05}"
                        corpus.append({"id": document, "title": "", "text": text})
                        relevant.setdefault(query, {})[document] = grade
                        top_ranked.setdefault(query, []).append(document)

        class Local(AbsTaskRetrieval):
            metadata = globals()["metadata"](
                task, kind.capitalize(), "ndcg_at_10" if kind == "retrieval" else "map_at_1000")

            def load_data(self, **_):
                data = RetrievalSplitData(corpus=Dataset.from_list(corpus), queries=Dataset.from_list(queries),
                                          relevant_docs=relevant, top_ranked=top_ranked)  # fmt: skip
                self.dataset = {"default": {split: data}}
                self.data_loaded = True

    else:
        rows = find(place, f"{split}.jsonl")

        class Local(AbsTaskSummarization):
            metadata = globals()["metadata"](task, "Summarization", "cosine_spearman")
            min_score, max_score = 0, 5

            def load_data(self, **_):
                keep = ("text", "human_summaries", "machine_summaries", "relevance")
                self.dataset = DatasetDict({split: Dataset.from_list([{k: row[k] for k in keep} for row in rows])})
                self.data_loaded = True

    return Local()


class Server:
    """A server of embeddings as an mteb model, through the openai client."""

    def __init__(self, url, model, key):
        import openai

        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key=key)
        self.model = model
        self.mteb_model_meta = ModelMeta.create_empty(overwrites={"name": "local/server", "revision": "1"})

    def encode(self, inputs, **_):
        texts = [text for batch in inputs for text in batch["text"]]
        vectors = []
        for start in range(0, len(texts), 64):
            answer = self.client.embeddings.create(model=self.model, input=texts[start : start + 64])
            vectors += [entry.embedding for entry in answer.data]
        return np.array(vectors, dtype=np.float32)

    def similarity(self, a, b):
        import torch

        return torch.nn.functional.normalize(torch.as_tensor(np.atleast_2d(a)), dim=-1) @ torch.nn.functional.normalize(
            torch.as_tensor(np.atleast_2d(b)), dim=-1).T  # fmt: skip

    def similarity_pairwise(self, a, b):
        import torch

        return torch.nn.functional.cosine_similarity(torch.as_tensor(a), torch.as_tensor(b))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("suite", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--st")
    parser.add_argument("--server")
    parser.add_argument("--model", default="model")
    parser.add_argument("--key", default="none")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    if args.st:
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(args.st, device="cpu")
    else:
        model = Server(args.server, args.model, args.key)
    scores = {}
    only = [name for name in args.only.split(",") if name]
    for task in tomllib.loads(args.suite.read_text())["task"]:
        if only and task["name"] not in only:
            continue
        try:
            made = make(task, args.data)
        except FileNotFoundError as error:
            print(f"{task['name']}: {error}", file=sys.stderr)
            continue
        result = mteb.evaluate(model, made, cache=None, encode_kwargs={"batch_size": 32}, show_progress_bar=False)
        found = result.task_results[0].scores[task["split"]][0]
        numbers = {k: v for k, v in found.items() if isinstance(v, (int, float))}
        scores[task["name"]] = {k: v if np.isfinite(v) else None for k, v in numbers.items()}
        print(f"{task['name']}: {found['main_score']:.5f}", file=sys.stderr)
    print(json.dumps(scores))


main()
