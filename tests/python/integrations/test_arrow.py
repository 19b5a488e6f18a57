import numpy as np
import pandas
import polars
import pyarrow
import pytest
from places import DOCUMENTS

from kiln_embed import Embedder


@pytest.fixture(scope="module")
def embedder():
    return Embedder(device="cpu")


def test_texts_of_every_library(embedder):
    expected = embedder.encode(DOCUMENTS)
    for texts in [
        pyarrow.array(DOCUMENTS),
        pyarrow.array(DOCUMENTS, pyarrow.large_string()),
        pyarrow.array(DOCUMENTS, pyarrow.string_view()),
        pyarrow.chunked_array([DOCUMENTS[:1], [], DOCUMENTS[1:]]),
        pyarrow.table({"text": DOCUMENTS})["text"],
        pyarrow.table({"text": DOCUMENTS}),
        polars.Series(DOCUMENTS),
        polars.DataFrame({"text": DOCUMENTS}),
        pandas.Series(DOCUMENTS),
        pandas.Series(DOCUMENTS, dtype=object),
        np.array(DOCUMENTS, dtype=object),
    ]:
        assert np.array_equal(embedder.encode(texts), expected), type(texts)


def test_vectors_in_every_library(embedder):
    expected = embedder.encode(DOCUMENTS)
    array = pyarrow.array(embedder.encode_arrow(DOCUMENTS))
    assert array.type == pyarrow.list_(pyarrow.field("item", pyarrow.float32(), nullable=False), 384)
    array.validate(full=True)
    assert np.array_equal(array.flatten().to_numpy(zero_copy_only=True).reshape(-1, 384), expected)
    series = polars.Series(embedder.encode_arrow(DOCUMENTS))
    assert series.dtype == polars.Array(polars.Float32, 384) and np.array_equal(series.to_numpy(), expected)


@pytest.mark.parametrize(
    "texts",
    [
        pyarrow.array(["a", None]),
        pyarrow.table({"a": ["x"], "b": ["y"]}),
        pyarrow.array([1, 2]),
        polars.Series(["a", None]),
        pandas.Series(["a", None], dtype=object),
    ],
)
def test_what_is_no_text(embedder, texts):
    with pytest.raises(TypeError):
        embedder.encode(texts)
