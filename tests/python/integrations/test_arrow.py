import duckdb
import numpy as np
import pandas
import polars
import pyarrow
import pytest
from places import DOCUMENTS, QUERY

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
    series = pandas.Series.from_arrow(embedder.encode_arrow(DOCUMENTS))
    assert np.array_equal(np.stack(series.to_list()), expected)


def test_texts_come_from_duckdb_and_vectors_go_there(embedder):
    expected = embedder.encode(DOCUMENTS)
    with duckdb.connect() as database:
        database.execute("create table passages (id integer, text varchar)")
        database.executemany("insert into passages values (?, ?)", list(enumerate(DOCUMENTS)))
        for given in [lambda rows: rows, lambda rows: rows.to_arrow_table(), lambda rows: rows.df()["text"]]:
            texts = given(database.sql("select text from passages order by id"))
            assert np.array_equal(embedder.encode(texts), expected), type(texts)
        vectors = embedder.encode_arrow(DOCUMENTS)
        # As any object with Arrow's interface, and as older versions of DuckDB take it.
        table = pyarrow.table({"vector": vectors})
        for name, given in [("vectors", vectors), ("table", table)]:
            database.register(f"from_{name}", given)
            rows = database.sql(f"select vector from from_{name}")
            assert [str(kind) for kind in rows.types] == ["FLOAT[384]"], name
            assert np.array_equal(np.array([vector for (vector,) in rows.fetchall()], dtype=np.float32), expected), name
        database.execute("create table embedded as select row_number() over () - 1 as id, vector from from_vectors")
        best = database.execute(
            "select text from embedded join passages using (id) order by array_cosine_similarity(vector, ?::float[384]) desc",
            [embedder.encode_query(QUERY).tolist()],
        ).fetchone()
        assert best == (DOCUMENTS[1],)


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
