"""Daft's own runner, and Daft on Ray."""

import os
import subprocess
import sys

import daft
import numpy as np
import pyarrow
import pyarrow.dataset
import pytest
from corpus import check, passages

from kiln_embed.integrations.daft import embed_text


def test_a_column_of_vectors(docs, expected):
    rows = daft.read_parquet(f"{docs}/*.parquet")
    rows = rows.with_column("embedding", embed_text(rows["text"], rows=100, device="cpu"))
    assert rows.schema()["embedding"].dtype == daft.DataType.fixed_size_list(daft.DataType.float32(), 384)
    table = rows.to_arrow()
    assert table.schema.field("embedding").type == pyarrow.list_(pyarrow.float32(), 384)
    check(table, expected)


def test_two_workers(docs, expected, tmp_path):
    rows = daft.read_parquet(f"{docs}/*.parquet")
    vectors = embed_text(rows["text"], concurrency=2, threads=1, device="cpu")
    rows.with_column("embedding", vectors).write_parquet(str(tmp_path / "out"))
    check(pyarrow.dataset.dataset(tmp_path / "out").to_table(), expected)


def test_settings_are_the_embedders(embedder):
    texts = passages(20)["text"].to_pylist()
    rows = daft.from_pydict({"passage": [*texts, None]})
    settings = {"prompt": "query: ", "normalize_embeddings": True, "truncate_dim": 64, "nulls": "keep", "device": "cpu"}
    out = rows.with_column("v", embed_text(rows["passage"], **settings)).to_arrow()["v"].to_pylist()
    assert out.pop() is None
    ours = np.array(out, dtype=np.float32)
    assert np.array_equal(ours, embedder.encode(texts, prompt="query: ", truncate_dim=64, normalize_embeddings=True))


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["a", None], "column 'passage' is null in row 1 of a batch of 2"),
        ([1, 2], "column 'passage' has int64, not strings; its first row is '1'"),
    ],
)
def test_what_is_wrong_is_said(texts, said):
    rows = daft.from_pydict({"passage": texts})
    with pytest.raises(TypeError) as raised:
        rows.with_column("v", embed_text(rows["passage"], device="cpu")).collect()
    assert said in str(raised.value)


def test_wrong_settings_are_said_at_once():
    rows = daft.from_pydict({"text": ["a"]})
    with pytest.raises(FileNotFoundError):
        embed_text(rows["text"], model="none.kiln")
    with pytest.raises(Exception, match="nothing"):
        rows.with_column("v", embed_text(daft.col("nothing"), device="cpu"))


def test_daft_on_ray(docs, tmp_path, expected):
    program = f"""
import daft, ray
from kiln_embed.integrations.daft import embed_text
ray.init(num_cpus=2, object_store_memory=150 * 2**20, log_to_driver=False)
daft.set_runner_ray()
rows = daft.read_parquet("{docs}/*.parquet")
vectors = embed_text(rows["text"], concurrency=2, cpus=1, threads=1, device="cpu")
rows.with_column("embedding", vectors).write_parquet("{tmp_path}/out")
"""
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300, env=env)
    check(pyarrow.dataset.dataset(tmp_path / "out").to_table(), expected)
