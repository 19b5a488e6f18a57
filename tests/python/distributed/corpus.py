"""Texts, and what has to become of them."""

from pathlib import Path

import numpy as np
import pyarrow

REPOSITORY = Path(__file__).resolve().parents[3]
WORDS = (
    "the river floods lower streets a violinist from small town granite walls and long way up ship carried tea timber "
    "petals of pale blue in wet meadows two eggs some flour moon pulls at sea"
).split()


def passages(count: int = 2400) -> pyarrow.Table:
    """Rows of 4 to 23 words, all different; some more columns beside."""
    texts = [
        " ".join(WORDS[(row * 7 + i * (1 + row % 5)) % len(WORDS)] for i in range(4 + row % 20)) + f" {row}"
        for row in range(count)
    ]
    return pyarrow.table(
        {
            "id": [f"p{row:06}" for row in range(count)],
            "text": texts,
            "rank": pyarrow.array(range(count), pyarrow.int32()),
            "tags": [["even" if row % 2 == 0 else "odd"] for row in range(count)],
        }
    )


def check(rows: pyarrow.Table, expected: dict[str, np.ndarray]) -> None:
    """Nothing is lost, nothing there twice, vectors are the model's own, and the other columns are as they were."""
    rows = rows.sort_by("id")
    before = passages().sort_by("id")
    assert rows["id"].to_pylist() == before["id"].to_pylist()
    for name in ["text", "rank"]:
        assert rows[name].to_pylist() == before[name].to_pylist(), name
    vectors = np.stack(rows["embedding"].to_numpy(zero_copy_only=False))
    assert vectors.dtype == np.float32
    assert np.array_equal(vectors, np.stack([expected[name] for name in rows["id"].to_pylist()]))


def nearest(vectors: np.ndarray, query: np.ndarray, k: int) -> list[int]:
    """Rows of the k greatest cosines, by comparing with all."""
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    return np.argsort(-cosines, kind="stable")[:k].tolist()
