import os

import mteb
import numpy as np
import pytest
from places import REPOSITORY
from datasets import Dataset, DatasetDict
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.models_protocols import EncoderProtocol

from kiln_embed import evaluate
from kiln_embed.integrations.mteb import KilnCrossEncoder, KilnEncoder

WORDS = "river ship sea boat stone wall summit violin orchestra egg flour recipe moon tide harbour".split()
ROWS = [
    {"sentence1": " ".join(WORDS[i % 15] for i in range(a, a + 4)), "sentence2": " ".join(WORDS[i % 15] for i in range(b, b + 4)),
     "score": float(max(0, 4 - abs(a - b)))}
    for a in range(12) for b in range(a, a + 5)
]  # fmt: skip


class Local(AbsTaskSTS):
    metadata = TaskMetadata(
        name="KilnLocal", description="local", type="STS", category="t2t", modalities=["text"], eval_splits=["test"],
        eval_langs=["eng-Latn"], main_score="cosine_spearman", dataset={"path": "local/local", "revision": "1"},
        date=("2000-01-01", "2020-01-01"), domains=["Written"], task_subtypes=[], license="not specified",
        annotations_creators="derived", dialect=[], sample_creation="found", bibtex_citation="", reference=None,
    )  # fmt: skip
    min_score, max_score = 0, 5

    def load_data(self, **_):
        self.dataset = DatasetDict({"test": Dataset.from_list(ROWS)})
        self.data_loaded = True


def score(model):
    result = mteb.evaluate(model, [Local()], cache=None, show_progress_bar=False)
    return result.task_results[0].scores["test"][0]["main_score"]


def test_mteb_evaluates_it_and_kiln_agrees(tmp_path):
    import json

    encoder = KilnEncoder("kiln-mini", device="cpu")
    assert isinstance(encoder, EncoderProtocol)
    data = tmp_path / "test.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    ours = evaluate("kiln-mini", data, "sts", device="cpu", no_cache=True)
    theirs = score(encoder)
    assert ours["main_score_name"] == Local.metadata.main_score
    assert theirs > 0.5 and abs(theirs - ours["main_score"]) < 1e-6, (theirs, ours)


@pytest.mark.skipif("KILN_MINILM" not in os.environ, reason="all-MiniLM-L6-v2 is not here (KILN_MINILM)")
def test_sentence_transformers_scores_the_same_and_has_the_same_vectors():
    from sentence_transformers import SentenceTransformer

    theirs, ours = SentenceTransformer(os.environ["KILN_MINILM"], device="cpu"), KilnEncoder(os.environ["KILN_MINILM"])
    texts = [row["sentence1"] for row in ROWS] + ["", "Größe, 蜂蜜 and 🚢", "word " * 600]
    expected, vectors = theirs.encode(texts), ours.model.encode(texts)
    assert ours.model.similarity_pairwise(expected, vectors).min() > 0.9999
    assert np.array_equal(
        theirs.tokenize(texts[:3])["input_ids"].numpy(), ours.model.tokenize(texts[:3])["input_ids"]
    )
    assert abs(score(theirs) - score(ours)) < 1e-4


def test_a_cross_encoder_has_what_mteb_asks_for():
    from torch.utils.data import DataLoader

    model = KilnCrossEncoder(str(REPOSITORY / "tests/fixtures/rerankers/bert"), device="cpu")
    batches = [DataLoader([{"text": text} for text in texts], batch_size=2) for texts in (["a"] * 3, ["b", "c", "b"])]
    scores = model.predict(*batches, task_metadata=None, hf_split="test", hf_subset="default")
    assert scores.shape == (3,) and scores[0] == scores[2] and "cross-encoder" in model.mteb_model_meta.model_type
