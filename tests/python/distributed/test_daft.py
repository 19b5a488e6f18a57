"""Daft's own runner, and Daft on Ray."""

import os
import subprocess
import sys

import daft
import numpy as np
import pyarrow
import pytest
from corpus import check, passages
from daft.functions import embed_text

from kiln_embed.integrations.daft import KilnProvider


def test_a_column_of_vectors(docs, expected):
    rows = daft.read_parquet(f"{docs}/*.parquet")
    rows = rows.with_column("embedding", embed_text(rows["text"], provider=KilnProvider(device="cpu"), batch_size=100))
    assert str(rows.schema()["embedding"].dtype) == "Embedding[Float32; 384]"
    check(rows.to_arrow(), expected)


def test_two_workers_and_a_provider_of_the_session(docs, expected):
    daft.attach_provider(KilnProvider(device="cpu", threads=1), "kiln")
    rows = daft.read_parquet(f"{docs}/*.parquet")
    check(rows.with_column("embedding", embed_text(rows["text"], provider="kiln", concurrency=2)).to_arrow(), expected)


def test_settings_are_the_embedders(embedder):
    texts = passages(20)["text"]
    rows = daft.from_arrow(pyarrow.table({"text": texts}))
    provider = KilnProvider(prompt="query: ", normalize_embeddings=True)
    out = rows.with_column("v", embed_text(rows["text"], provider=provider, dimensions=64, device="cpu")).to_pydict()
    ours = np.array(out["v"], dtype=np.float32)
    assert np.array_equal(ours, embedder.encode(texts, prompt="query: ", truncate_dim=64, normalize_embeddings=True))


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["a", None], "the text in row 1 of a batch of 2 is null"),
        ([1, 2], "the text in row 0 of a batch of 2 is int ('1'), not a string"),
    ],
)
def test_what_is_wrong_is_said(texts, said):
    rows = daft.from_pydict({"passage": texts})
    rows = rows.with_column("v", embed_text(rows["passage"], provider=KilnProvider(device="cpu")))
    with pytest.raises(Exception) as raised:
        rows.collect()
    chain, error = "", raised.value
    while error is not None:
        chain, error = f"{chain}\n{error}", error.__cause__
    # Daft says which column it is.
    assert said in chain and "passage" in chain


def test_wrong_settings_are_said_at_once():
    rows = daft.from_pydict({"text": ["a"]})
    with pytest.raises(ValueError, match="no option 'promt'"):
        embed_text(rows["text"], provider=KilnProvider(), promt="x")
    with pytest.raises(FileNotFoundError):
        embed_text(rows["text"], provider=KilnProvider(), model="none.kiln")
    with pytest.raises(Exception, match="nothing"):
        rows.with_column("v", embed_text(daft.col("nothing"), provider=KilnProvider(device="cpu"))).collect()


def test_daft_on_ray(docs, tmp_path, expected):
    program = f"""
import daft, ray
from daft.functions import embed_text
from kiln_embed.integrations.daft import KilnProvider
ray.init(num_cpus=2, object_store_memory=150 * 2**20, log_to_driver=False)
daft.set_runner_ray()
rows = daft.read_parquet("{docs}/*.parquet")
provider = KilnProvider(device="cpu", threads=1)
rows.with_column("embedding", embed_text(rows["text"], provider=provider, concurrency=2)).write_parquet("{tmp_path}/out")
"""
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300, env=env)
    check(daft.read_parquet(f"{tmp_path}/out/*.parquet").to_arrow(), expected)
