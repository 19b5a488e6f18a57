"""Texts a second that an engine embeds with one worker and with two, each on one thread; and rows a second that a store
takes, new ones and in a second run.

    python rates.py [ENGINE OR STORE ...] [--texts 10000] [--rows 50000] [--runs 3]

The plain Embedder on one thread and on two is beside the engines. Of each run only the job is timed, with the starting of
its workers and the reading of Parquet files; of several runs the median is taken. The engine itself has started before.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet
from corpus import passages

ENGINES = ["plain", "ray", "daft", "spark"]
STORES = ["lance", "qdrant", "postgres"]


def plain(docs, workers):
    """Threads in the place of workers."""
    from kiln_embed import Embedder

    os.environ["RAYON_NUM_THREADS"] = str(workers)

    def job():
        return len(Embedder(device="cpu").encode(pyarrow.parquet.read_table(docs)["text"]))

    return job


def on_ray(docs, workers):
    """As many actors."""
    import ray

    from kiln_embed.integrations.ray import KilnEmbedder

    # One CPU more than there are, for what reads.
    ray.init(num_cpus=workers + 1, object_store_memory=200 * 2**20, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False

    def job():
        # Ray makes one block of small files, which one actor would get.
        rows = ray.data.read_parquet(str(docs)).repartition(8).map_batches(
            KilnEmbedder, compute=ray.data.ActorPoolStrategy(size=workers), batch_size=512, batch_format="pyarrow",
            fn_constructor_kwargs={"device": "cpu", "threads": 1},
        )  # fmt: skip
        return rows.materialize().count()

    return job


def on_daft(docs, workers):
    """As many processes of its own runner."""
    import daft

    from kiln_embed.integrations.daft import embed_text

    def job():
        rows = daft.read_parquet(f"{docs}/*.parquet")
        vectors = embed_text(rows["text"], concurrency=workers, rows=512, threads=1, device="cpu")
        return len(rows.with_column("embedding", vectors).collect())

    return job


def on_spark(docs, workers):
    """As many tasks at a time."""
    from pyspark.sql import SparkSession

    from kiln_embed.integrations.spark import embed_batches, with_vectors

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master(f"local[{workers}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "localhost")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")

    def job():
        rows = session.read.parquet(str(docs)).repartition(8)
        rows = rows.mapInArrow(embed_batches(device="cpu", threads=1), with_vectors(rows.schema))
        return rows.toArrow().num_rows

    return job


def into_store(store, folder, rows):
    """Seconds of the first run and of the second."""
    import numpy as np

    from kiln_embed.stores import Provenance

    table = passages(rows).select(["id", "text"])
    values = np.random.default_rng(0).normal(size=(rows, 384)).astype(np.float32)
    vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values.ravel()), 384)
    table = table.append_column("embedding", vectors)
    if store == "lance":
        from kiln_embed.stores.lance import write

        place = f"{folder}/lance"
    elif store == "qdrant":
        from kiln_embed.stores.qdrant import write
        from qdrant_client import QdrantClient

        place = QdrantClient(path=f"{folder}/qdrant")
    else:
        import pgserver
        import psycopg

        from kiln_embed.stores.pgvector import write

        server = pgserver.get_server(f"{folder}/postgres", cleanup_mode="stop")
        place = psycopg.connect(server.get_uri())
    seconds = []
    for _ in range(2):
        begun = time.perf_counter()
        assert write(place, "passages", table, provenance=Provenance("random", "0")) == rows
        seconds.append(time.perf_counter() - begun)
    print(f"{store:8}: {rows / seconds[0]:6.0f} new rows/s, {rows / seconds[1]:6.0f} rows/s in a second run", flush=True)


def measure(engine, workers, docs, texts, runs):
    """In a process of its own."""
    job = {"plain": plain, "ray": on_ray, "daft": on_daft, "spark": on_spark}[engine](docs, workers)
    seconds = []
    for _ in range(runs):
        begun = time.perf_counter()
        assert job() == texts
        seconds.append(time.perf_counter() - begun)
    print(json.dumps(seconds))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=ENGINES + STORES, metavar="NAME")
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--one", nargs=3, metavar=("ENGINE", "WORKERS", "DOCS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        measure(given.one[0], int(given.one[1]), Path(given.one[2]), given.texts, given.runs)
        return
    with tempfile.TemporaryDirectory() as scratch:
        docs = f"{scratch}/docs"
        os.mkdir(docs)
        table = passages(given.texts)
        for number in range(20):
            part = table.slice(number * given.texts // 20, given.texts // 20)
            pyarrow.parquet.write_table(part, f"{docs}/{number:02}.parquet")
        for store in given.names:
            if store in STORES:
                into_store(store, scratch, given.rows)
        for engine in given.names:
            if engine in STORES:
                continue
            for workers in (1, 2):
                options = ["--texts", str(given.texts), "--runs", str(given.runs), "--one", engine, str(workers), docs]
                said = subprocess.run(
                    [sys.executable, __file__, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
                ).stdout
                seconds = json.loads(said.splitlines()[-1])
                rates = " ".join(f"{given.texts / one:.0f}" for one in seconds)
                print(f"{engine:6} {workers}: {given.texts / statistics.median(seconds):6.0f} texts/s ({rates})", flush=True)


if __name__ == "__main__":
    main()
