"""Ray Data on a cluster of several nodes, whose actors and nodes die."""

import os
import threading
import time

import numpy as np
import pyarrow.dataset
import pyarrow.parquet
import pytest
import ray
from corpus import check, passages
from ray.cluster_utils import Cluster
from workers import Marked

from kiln_embed.integrations.ray import KilnEmbedder


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    memory = {"object_store_memory": 150 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **memory})
    for _ in range(2):
        cluster.add_node(num_cpus=1, resources={"worker": 1}, **memory)
    ray.init(address=cluster.address, log_to_driver=False)
    cluster.wait_for_nodes()
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield cluster, memory
    ray.shutdown()
    cluster.shutdown()


def actors(size):
    return ray.data.ActorPoolStrategy(size=size)


def blocks(docs):
    """A block of each file; small files that Ray reads become one."""
    return ray.data.from_arrow([pyarrow.parquet.read_table(path) for path in sorted(docs.iterdir())])


def read(folder):
    return pyarrow.dataset.dataset(folder).to_table()


def test_a_column_of_vectors(cluster, docs, expected, tmp_path):
    rows = ray.data.read_parquet(str(docs))
    settings = {"folder": str(tmp_path / "marks"), "device": "cpu"}
    (tmp_path / "marks").mkdir()
    rows = rows.map_batches(Marked, concurrency=2, batch_format="pyarrow", fn_constructor_kwargs=settings)
    rows.write_parquet(str(tmp_path / "out"))
    table = read(tmp_path / "out")
    check(table, expected)
    assert table["tags"].to_pylist().count(["odd"]) == 1200
    assert table.schema.field("embedding").type == pyarrow.list_(pyarrow.float32(), 384)
    workers = sorted(path.name for path in (tmp_path / "marks").glob("worker-*"))
    # One model for each actor, and as many threads as Ray gave CPUs.
    assert len(workers) == 2 and all(name.endswith("-1") for name in workers), workers


@pytest.mark.parametrize("batch_format", ["numpy", "pandas", "default"])
def test_batches_of_every_format(cluster, embedder, batch_format):
    table = passages(50)
    rows = ray.data.from_arrow(table).map_batches(
        KilnEmbedder, compute=actors(1), batch_format=batch_format, fn_constructor_kwargs={"device": "cpu"}
    )
    out = pyarrow.concat_tables(rows.iter_batches(batch_format="pyarrow", batch_size=None)).sort_by("id")
    assert out["text"].to_pylist() == table["text"].to_pylist()
    assert out.schema.field("embedding").type == pyarrow.list_(pyarrow.float32(), 384)
    vectors = np.stack(out["embedding"].to_numpy(zero_copy_only=False))
    assert np.array_equal(vectors, embedder.encode(table["text"]))


def test_settings_are_the_embedders(cluster, embedder):
    texts = passages(20)["text"]
    settings = {
        "column": "passage",
        "output": "vector",
        "prompt": "query: ",
        "truncate_dim": 64,
        "normalize_embeddings": True,
        "batch_size": 8,
        "threads": 1,
        "nulls": "keep",
        "device": "cpu",
    }
    given = pyarrow.table({"passage": pyarrow.array([*texts.to_pylist(), None]), "row": range(21)})
    rows = ray.data.from_arrow(given).map_batches(
        KilnEmbedder, compute=actors(1), batch_format="pyarrow", fn_constructor_kwargs=settings
    )
    out = {row["row"]: row["vector"] for row in rows.take_all()}
    assert out.pop(20) is None
    ours = np.stack([out[row] for row in range(20)])
    assert np.array_equal(ours, embedder.encode(texts, prompt="query: ", truncate_dim=64, normalize_embeddings=True))


def test_an_actor_that_is_killed_loses_nothing(cluster, docs, expected, tmp_path):
    (tmp_path / "marks").mkdir()
    settings = {"folder": str(tmp_path / "marks"), "dies": True, "device": "cpu"}
    rows = blocks(docs).map_batches(
        Marked, compute=actors(2), batch_size=50, batch_format="pyarrow", fn_constructor_kwargs=settings
    )
    rows.write_parquet(str(tmp_path / "out"))
    assert (tmp_path / "marks/died").exists()
    assert len(list((tmp_path / "marks").glob("worker-*"))) >= 3
    check(read(tmp_path / "out"), expected)


def test_a_node_that_is_killed_loses_nothing(cluster, docs, expected, tmp_path):
    cluster, memory = cluster
    lost = cluster.add_node(num_cpus=1, resources={"worker": 1}, **memory)
    cluster.wait_for_nodes()
    marks = tmp_path / "marks"
    marks.mkdir()
    settings = {"folder": str(marks), "device": "cpu"}

    def there():
        return len(list(marks.glob(f"batch-{lost.node_id}-*")))

    def kill():
        begun = time.monotonic()
        while there() < 3 and time.monotonic() - begun < 200:
            time.sleep(0.02)
        cluster.remove_node(lost, allow_graceful=False)
        (marks / "killed").write_text(str(len(list(marks.glob("batch-*")))))

    thread = threading.Thread(target=kill)
    thread.start()
    rows = blocks(docs).map_batches(
        Marked,
        compute=actors(3),
        batch_size=25,
        batch_format="pyarrow",
        # One on each node but the head, whose CPUs read and write.
        resources={"worker": 1},
        fn_constructor_kwargs=settings,
    )
    rows.write_parquet(str(tmp_path / "out"))
    thread.join()
    # It was in the middle, and what was computed there has gone with it.
    assert int((marks / "killed").read_text()) < 72 and there() >= 3
    assert [node["NodeID"] for node in ray.nodes() if not node["Alive"]] == [lost.node_id]
    check(read(tmp_path / "out"), expected)


def test_batches_and_files_go_into_a_store_with_their_model(cluster, tmp_path, expected):
    import lancedb

    from kiln_embed.stores import lance

    rows = ray.data.from_arrow(passages(100)).drop_columns(["tags"]).map_batches(
        KilnEmbedder, compute=actors(1), batch_format="pyarrow", fn_constructor_kwargs={"device": "cpu"}
    )
    batches = rows.iter_batches(batch_format="pyarrow", batch_size=40)
    assert lance.write(tmp_path / "db", "passages", batches) == 100
    rows.write_parquet(str(tmp_path / "out"))
    assert lance.write(tmp_path / "db", "passages", pyarrow.dataset.dataset(tmp_path / "out").to_batches()) == 100
    kept = lancedb.connect(tmp_path / "db").open_table("passages").to_arrow().to_pylist()
    assert len(kept) == 100
    for row in kept:
        assert np.array_equal(np.array(row["embedding"], np.float32), expected[row["id"]])


@pytest.mark.parametrize(
    ("table", "settings", "said"),
    [
        ({"text": ["a"]}, {"column": "txt"}, "there is no column 'txt'; columns are 'text'"),
        ({"text": [1]}, {}, "column 'text' has int64, not strings; its first row is '1'"),
        ({"id": ["x", "y"], "text": ["a", None]}, {}, "column 'text' is null in row 1 of a batch of 2 (id='y')"),
        ({"text": ["a"], "embedding": [1]}, {}, "column 'embedding' is there already"),
        ({"text": ["a"]}, {"model": "none.kiln"}, "none.kiln"),
    ],
)
def test_what_is_wrong_is_said(cluster, table, settings, said):
    rows = ray.data.from_arrow(pyarrow.table(table)).map_batches(
        KilnEmbedder, compute=actors(1), batch_format="pyarrow", fn_constructor_kwargs={"device": "cpu", **settings}
    )
    with pytest.raises(Exception) as raised:
        rows.materialize()
    assert said in str(raised.value)
