"""Reranker: scores are those of transformers, methods those of CrossEncoder."""

import json
import pickle
import shutil

import numpy as np
import pytest
from samples import REPOSITORY

from kiln_embed import Reranker

RERANKERS = REPOSITORY / "tests/fixtures/rerankers"
PAIRS = [tuple(pair) for pair in json.loads((RERANKERS / "pairs.json").read_text())]


@pytest.fixture(scope="module")
def reranker():
    return Reranker(RERANKERS / "bert", device="cpu")


@pytest.mark.parametrize("family", ["bert", "gemma", "modernbert", "qwen3", "xlm-roberta", "xlm-roberta-xl"])
def test_scores_are_those_of_transformers(family):
    expected = json.loads((RERANKERS / family / "scores.json").read_text())
    scores = Reranker(RERANKERS / family, device="cpu").predict(PAIRS, activate=False)
    assert scores.dtype == np.float32
    assert np.allclose(scores, np.ravel(expected), atol=1e-3)


def test_documents_are_ranked(reranker):
    query, documents = "where does the river flood", [text for _, text in PAIRS]
    ranked = reranker.rank(query, documents, return_documents=True)
    scores = reranker.predict([(query, text) for text in documents])
    assert [hit["corpus_id"] for hit in ranked] == sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    for hit in ranked:
        assert hit["score"] == float(scores[hit["corpus_id"]]) and hit["text"] == documents[hit["corpus_id"]]
    assert reranker.rank(query, documents, top_k=2) == [
        {"corpus_id": hit["corpus_id"], "score": hit["score"]} for hit in ranked[:2]
    ]
    assert reranker.rank(query, (text for text in documents), top_k=1)[0]["corpus_id"] == ranked[0]["corpus_id"]
    assert reranker.rank(query, documents, batch_size=2) == reranker.rank(query, documents)
    assert reranker.rank(query, []) == []


def test_scores_that_a_sigmoid_makes_equal_are_ranked(reranker, tmp_path):
    # The head's weights a thousandfold: every score is 0 or 1 then.
    folder = shutil.copytree(RERANKERS / "bert", tmp_path / "bert")
    weights = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(weights[:8], "little")
    header, values = json.loads(weights[8 : 8 + size]), bytearray(weights[8 + size :])
    for name in ("classifier.weight", "classifier.bias"):
        begin, end = header[name]["data_offsets"]
        values[begin:end] = (np.frombuffer(values[begin:end], np.float32) * 1e3).tobytes()
    (folder / "model.safetensors").write_bytes(weights[: 8 + size] + values)
    query, documents = "where does the river flood", [text for _, text in PAIRS]
    large = Reranker(folder, device="cpu")
    scores = large.predict([(query, text) for text in documents])
    assert len({float(score) for score in scores}) < len(documents)
    expected = [hit["corpus_id"] for hit in reranker.rank(query, documents)]
    assert [hit["corpus_id"] for hit in large.rank(query, documents)] == expected


def test_one_pair_has_one_score(reranker):
    assert reranker.predict(PAIRS[0]) == reranker.predict([PAIRS[0]])[0]
    assert reranker.predict([]).shape == (0,)


def test_it_is_pickled_by_its_name(reranker):
    other = pickle.loads(pickle.dumps(reranker))
    assert repr(other) == repr(reranker)
    assert np.array_equal(other.predict(PAIRS), reranker.predict(PAIRS))


def test_what_is_no_pair_is_named(reranker):
    for pairs, said in [
        ([("a", "b"), "c"], r"sentences\[1\] is no pair"),
        ([("a", "b", "c")], r"sentences\[0\] is no pair"),
        ([("a", None)], r"texts\[0\] is NoneType"),
        ([(b"a", "b")], r"queries\[0\] is bytes"),
    ]:
        with pytest.raises(TypeError, match=said):
            reranker.predict(pairs)
    with pytest.raises(TypeError, match="documents must be several texts"):
        reranker.rank("a", "b")
    with pytest.raises(TypeError, match="query must be str"):
        reranker.rank(None, ["b"])
    with pytest.raises(ValueError, match="takes no instruction"):
        Reranker(RERANKERS / "bert", device="cpu", instruction="find")
