"""Index: exact search, against NumPy."""

import numpy as np
import pytest
from samples import many

from kiln_embed import Hits, Index


@pytest.fixture(scope="module")
def vectors():
    rows = np.random.default_rng(1).normal(size=(500, 96)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_the_search_is_exact(vectors):
    index = Index.from_vectors(vectors)
    hits = index.search(vectors[:20], k=7)
    scores = vectors[:20] @ vectors.T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :7]
    assert hits.rows.dtype == np.int64 and hits.scores.dtype == np.float32
    assert np.array_equal(hits.rows, order)
    assert np.allclose(hits.scores, np.take_along_axis(scores, order, axis=1), atol=1e-5)


def bytes_of(rows):
    """One byte a dimension, as core/src/index/compact.rs says: the vector times 127 / max |x|."""
    scales = np.abs(rows).max(axis=1, keepdims=True) / np.float32(127)
    return np.trunc(rows / scales + np.copysign(0.5, rows)) * scales


def expected_scores(precision, queries, rows, candidates):
    """What numpy makes of it; rows that are no candidates have no score."""
    if precision == "int8":
        return bytes_of(queries) @ bytes_of(rows).T
    signs = np.where(rows > 0, 1, -1).astype(np.float32)
    same = np.where(queries > 0, 1, -1) @ signs.T
    # Of equal distances the first rows are taken.
    order = np.argsort(-same, axis=1, kind="stable")[:, :candidates]
    scores = queries @ signs.T / np.sqrt(rows.shape[1]) if precision == "binary" else bytes_of(queries) @ bytes_of(rows).T
    kept = np.full_like(scores, -np.inf)
    np.put_along_axis(kept, order, np.take_along_axis(scores, order, axis=1), axis=1)
    return kept


@pytest.mark.parametrize("precision", ["int8", "binary", "binary+int8"])
def test_fewer_bits_are_what_they_say(vectors, precision):
    queries = vectors[:50] + 0.05 * vectors[50:100]
    index = Index.from_vectors(vectors, precision)
    hits = index.search(queries, k=10, rescore=4)
    scores = expected_scores(precision, queries, vectors, 40)
    assert np.allclose(hits.scores, -np.sort(-scores, axis=1)[:, :10], atol=1e-4)
    assert np.allclose(np.take_along_axis(scores, hits.rows, axis=1), hits.scores, atol=1e-4)
    assert index.nbytes < Index.from_vectors(vectors).nbytes / 3


@pytest.mark.parametrize("precision", ["f32", "int8", "binary", "binary+int8"])
def test_what_is_saved_is_loaded(vectors, precision, tmp_path):
    index = Index.from_vectors(vectors, precision)
    index.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index")
    assert repr(loaded) == repr(index) == f"Index(96, '{precision}', rows=500)"
    for ours, theirs in zip(loaded.search(vectors[:9]), index.search(vectors[:9])):
        assert np.array_equal(ours, theirs)


def test_one_query_has_one_list(vectors):
    index = Index.from_vectors(vectors)
    one = index.search(vectors[3], k=2)
    assert isinstance(one, Hits) and one.rows.shape == one.scores.shape == (2,)
    assert one.rows[0] == 3
    assert index.search(vectors[:1], k=2).rows.shape == (1, 2)


def test_rows_come_and_go(vectors):
    index = Index(96)
    assert index.add(vectors[0]) == range(0, 1)
    assert index.add(vectors[1:4]) == range(1, 4)
    assert index.add(np.zeros((0, 96))) == range(4, 4)
    assert np.array_equal(index.vector(2), vectors[2])
    assert np.array_equal(index.vector(-1), vectors[3])
    index.swap_remove(0)
    assert len(index) == 3 and np.array_equal(index.vector(0), vectors[3])


def test_few_rows_are_all_that_is_found():
    index = Index(3)
    assert index.search([1, 0, 0], k=5).rows.shape == (0,)
    assert index.search(np.eye(3), k=5).rows.shape == (3, 0)
    index.add(np.eye(3)[:2])
    assert index.search([1, 0.5, 0], k=10**9).rows.tolist() == [0, 1]
    assert index.search(np.zeros((0, 3))).rows.shape == (0, 2)


@pytest.mark.parametrize("kind", [np.float16, np.float64, np.int8, ">f4"])
def test_numbers_of_any_kind_are_taken(kind):
    index = Index.from_vectors(np.eye(3, dtype=kind))
    assert index.search(np.asfortranarray(np.eye(3, dtype=kind)), k=1).rows.ravel().tolist() == [0, 1, 2]
    assert index.search(np.eye(6, dtype=kind)[::2, ::2], k=1).scores.ravel().tolist() == [1, 1, 1]


def test_texts_are_found_by_meaning(embedder):
    documents = ["a ship sails across the sea", "the recipe needs two eggs", *many(50)]
    index = Index.from_vectors(embedder.encode_document(documents), "int8")
    assert index.search(embedder.encode_query("cooking with eggs"), k=1).rows[0] == 1
