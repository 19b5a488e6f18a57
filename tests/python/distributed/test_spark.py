"""Spark, with two workers on this machine."""

import os
import sys

import numpy as np
import pandas
import pytest
from corpus import check, passages
from pyspark.sql import SparkSession
from workers import Dying

from kiln_embed.integrations.spark import embed_batches, with_vectors


@pytest.fixture(scope="module")
def spark():
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        # Two at a time, and four tries for each task.
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "localhost")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        .config("spark.sql.files.maxPartitionBytes", "64k")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def test_a_column_of_vectors(spark, docs, expected, tmp_path):
    rows = spark.read.parquet(str(docs))
    assert rows.rdd.getNumPartitions() > 2
    rows = rows.mapInArrow(embed_batches("text", device="cpu"), with_vectors(rows.schema))
    assert rows.schema["embedding"].dataType.simpleString() == "array<float>"
    rows.write.parquet(str(tmp_path / "out"))
    import pyarrow.dataset

    check(pyarrow.dataset.dataset(tmp_path / "out").to_table(), expected)


def test_a_worker_has_one_model_for_all_its_tasks(spark, docs):
    rows = spark.read.parquet(str(docs))
    embed = embed_batches(device="cpu")

    def who(batches):
        import pyarrow

        from kiln_embed.integrations import spark as ours

        count = sum(batch.num_rows for batch in embed(batches))
        one = [os.getpid(), count, len(ours._loaded), int(os.environ["RAYON_NUM_THREADS"])]
        yield pyarrow.RecordBatch.from_pydict(dict(zip(["pid", "rows", "models", "threads"], [[value] for value in one])))

    seen = rows.mapInArrow(who, "pid long, rows long, models long, threads long").toPandas()
    assert seen["rows"].sum() == 2400 and len(seen) > seen["pid"].nunique() and seen["pid"].nunique() <= 2
    assert seen["models"].tolist() == [1] * len(seen) and set(seen["threads"]) == {1}


def test_a_worker_that_is_killed_loses_nothing(spark, docs, expected, tmp_path):
    rows = spark.read.parquet(str(docs)).coalesce(4)
    embed = Dying(embed_batches(device="cpu"), str(tmp_path))
    out = rows.mapInArrow(embed, with_vectors(rows.schema)).toArrow()
    assert (tmp_path / "died").exists()
    check(out, expected)


def test_settings_are_the_embedders(spark, embedder):
    texts = passages(20)["text"].to_pylist()
    rows = spark.createDataFrame([(row, text) for row, text in enumerate([*texts, None])], "row int, passage string")
    embed = embed_batches(
        "passage", "v", prompt="query: ", truncate_dim=64, normalize_embeddings=True, nulls="keep", device="cpu"
    )
    out = rows.mapInArrow(embed, with_vectors(rows.schema, "v")).toPandas().sort_values("row")
    assert out["v"].iloc[20] is None
    ours = np.array(out["v"].tolist()[:20], dtype=np.float32)
    assert np.array_equal(ours, embedder.encode(texts, prompt="query: ", truncate_dim=64, normalize_embeddings=True))


@pytest.mark.parametrize(
    ("values", "kind", "column", "said"),
    [
        (["a"], "string", "txt", "there is no column 'txt'; columns are 'id', 'text'"),
        ([1], "int", "text", "column 'text' has int32, not strings; its first row is '1'"),
        ([None], "string", "text", "column 'text' is null in row 0 of a batch of 1 (id='p0')"),
    ],
)
def test_what_is_wrong_is_said(spark, values, kind, column, said):
    frame = pandas.DataFrame({"id": ["p0"], "text": values})
    rows = spark.createDataFrame(frame.to_numpy().tolist(), f"id string, text {kind}")
    with pytest.raises(Exception) as raised:
        rows.mapInArrow(embed_batches(column, device="cpu"), with_vectors(rows.schema)).collect()
    assert said in str(raised.value)
