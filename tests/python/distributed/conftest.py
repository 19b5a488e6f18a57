"""What the tests with the real engines and stores share."""

import os
from pathlib import Path

import pgserver
import pyarrow
import pyarrow.parquet
import pytest
from corpus import passages

MODEL = Path(__file__).resolve().parents[3] / "web-demo/kiln-mini.kiln"

# Workers find what the tests define.
os.environ["PYTHONPATH"] = str(Path(__file__).parent)


@pytest.fixture(scope="session")
def embedder():
    from kiln_embed import Embedder

    return Embedder(device="cpu")


@pytest.fixture(scope="session")
def expected(embedder):
    """What each text gets from the model alone."""
    table = passages()
    return dict(zip(table["id"].to_pylist(), embedder.encode(table["text"])))


@pytest.fixture(scope="session")
def docs(tmp_path_factory):
    """A folder of 24 files."""
    folder, table = tmp_path_factory.mktemp("docs"), passages()
    rows = table.num_rows // 24
    for number in range(24):
        pyarrow.parquet.write_table(table.slice(number * rows, rows), folder / f"{number:02}.parquet")
    return folder


@pytest.fixture(scope="session")
def vectors(tmp_path_factory, docs):
    """What `kiln embed` makes of it, in two shares."""
    from kiln_embed import run

    folder = tmp_path_factory.mktemp("vectors")
    for share in range(2):
        done = run("embed", input=docs, output=folder, model=MODEL, device="cpu", shard=f"{share}/2")
        assert done["files"] == 12 and not done["failed"]
    return folder


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = pgserver.get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="stop")
    yield server.get_uri()
    server.cleanup()
