"""Arrow in and out by the PyCapsule interface."""

import nanoarrow
import numpy as np
import pytest
from samples import SENTENCES


@pytest.mark.parametrize("kind", [nanoarrow.string, nanoarrow.large_string])
def test_texts_are_read_where_they_are(embedder, kind):
    expected = embedder.encode(SENTENCES)
    assert np.array_equal(embedder.encode(nanoarrow.c_array(SENTENCES, kind())), expected)
    assert np.array_equal(embedder.encode(nanoarrow.Array(SENTENCES, kind())), expected)
    assert np.array_equal(embedder.encode(nanoarrow.c_array(SENTENCES, kind())[2:5]), expected[2:5])


def test_chunks_are_one_column(embedder):
    class Chunks:
        def __arrow_c_stream__(self, requested_schema=None):
            chunks = [nanoarrow.c_array(part, nanoarrow.string()) for part in (SENTENCES[:3], [], SENTENCES[3:])]
            return nanoarrow.c_array_stream(
                nanoarrow.Array.from_chunks(chunks)
            ).__arrow_c_stream__()

    assert np.array_equal(embedder.encode(Chunks()), embedder.encode(SENTENCES))


def test_vectors_are_fixed_size_lists(embedder):
    vectors = embedder.encode_arrow(SENTENCES, truncate_dim=32)
    assert repr(vectors) == "Vectors(7 x 32 float32)" and len(vectors) == 7 and vectors.dimensions == 32
    array = nanoarrow.c_array(vectors)
    assert array.length == 7 and array.schema.format == "+w:32" and array.child(0).schema.format == "f"
    expected = embedder.encode(SENTENCES, truncate_dim=32)
    assert np.array_equal(np.array(nanoarrow.Array(vectors).to_pylist(), dtype=np.float32), expected)
    # A consumer may take it twice, and keep it when the vectors are gone.
    again = nanoarrow.c_array(vectors)
    del vectors
    assert np.array_equal(np.array(nanoarrow.Array(again).to_pylist(), dtype=np.float32), expected)


@pytest.mark.parametrize(
    ("array", "kind", "said"),
    [
        (lambda: nanoarrow.c_array(["a", None], nanoarrow.string()), TypeError, r"sentences\[1\] is null, not str"),
        (lambda: nanoarrow.c_array([1, 2], nanoarrow.int64()), TypeError, "Arrow array of Int64, not of strings"),
        (lambda: nanoarrow.c_array([b"a"], nanoarrow.binary()), TypeError, "Arrow array of Binary"),
    ],
)
def test_what_is_no_text_is_named(embedder, array, kind, said):
    with pytest.raises(kind, match=said):
        embedder.encode(array())


def test_bytes_that_are_no_text_are_refused(embedder):
    bad = nanoarrow.c_array_from_buffers(
        nanoarrow.string(), 2, [None, np.array([0, 1, 3], dtype=np.int32), b"a\xff\xfe"]
    )
    with pytest.raises(ValueError, match="no sound Arrow array"):
        embedder.encode(bad)


def test_an_object_that_lies_about_itself(embedder):
    class Liar:
        def __arrow_c_array__(self, requested_schema=None):
            return ("these", "are no capsules")

    with pytest.raises(TypeError):
        embedder.encode(Liar())

    class Raises:
        def __arrow_c_stream__(self, requested_schema=None):
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        embedder.encode(Raises())
