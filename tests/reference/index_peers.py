"""`kiln index` beside faiss and usearch, over the same vectors and in one run: HNSW with the same numbers.

    python index_peers.py VECTORS.npy --kiln KILN [--queries N] [--threads N] [--expansion-add N]

Needs numpy, faiss-cpu and usearch. Each builds with M = 16 and efConstruction = 128 (--expansion-add: with fewer, where only
memory is asked about) from the same f32 vectors in one byte a dimension (faiss: scalar quantizer QT_8bit), in a process of its
own, and is asked with rows drawn at random, each without itself, one at a time, at ef = 32, 64 and 128. Recall@10 is against
exact search in f32. Each reads the vectors block by block, so that its memory is that of the index. Prints JSON: seconds to
build, MB on disk, MB of the process's largest memory until the index is written, and for each ef recall and the median of a
query's milliseconds.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

K, M = 10, 16
EXPANSIONS = (32, 64, 128)


def load(path):
    vectors = np.load(path)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def shape_of(path):
    return np.load(path, mmap_mode="r").shape


def blocks(path, rows=16384):
    """The same vectors, so many at a time."""
    with open(path, "rb") as file:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        (count, width), _, dtype = read(file)
        for start in range(0, count, rows):
            block = np.fromfile(file, dtype, min(rows, count - start) * width).reshape(-1, width).astype(np.float32, copy=False)
            yield block / np.linalg.norm(block, axis=1, keepdims=True)


def exact(vectors, rows):
    """The K best rows of each query but itself, in f32."""
    best = []
    for start in range(0, len(rows), 64):
        scores = vectors[rows[start : start + 64]] @ vectors.T
        for own, line in zip(rows[start : start + 64], scores):
            line[own] = -2
            top = np.argpartition(-line, K)[:K]
            best.append(set(top[np.argsort(-line[top])].tolist()))
    return best


def asked(search, queries, rows, truth):
    """Recall and milliseconds of `search(vector, k, ef)`, for the vectors of some rows."""
    lines = []
    for ef in EXPANSIONS:
        found, times = 0, []
        for vector, own, best in zip(queries, rows, truth):
            start = time.perf_counter()
            keys = search(vector, K + 1, ef)
            times.append(time.perf_counter() - start)
            found += len(best & set([key for key in keys if key != own][:K]))
        lines.append({"ef": ef, "recall": round(found / (K * len(rows)), 4), "p50_ms": round(1000 * float(np.median(times)), 3)})
    return lines


def with_faiss(path, args, scratch):
    import faiss

    faiss.omp_set_num_threads(args.threads)
    count, width = shape_of(path)
    index = faiss.IndexHNSWSQ(width, faiss.ScalarQuantizer.QT_8bit, M, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = args.expansion_add
    start = time.perf_counter()
    every = max(1, count // 100_000)
    index.train(np.concatenate([block[::every] for block in blocks(path)]))
    for block in blocks(path):
        index.add(block)
    seconds = time.perf_counter() - start
    faiss.write_index(index, f"{scratch}/faiss")

    def search(vector, k, ef):
        index.hnsw.efSearch = ef
        return index.search(vector[None], k)[1][0].tolist()

    return seconds, os.path.getsize(f"{scratch}/faiss"), search


def with_usearch(path, args, scratch):
    from usearch.index import Index

    index = Index(ndim=shape_of(path)[1], metric="cos", dtype="i8", connectivity=M, expansion_add=args.expansion_add)
    start = time.perf_counter()
    for block in blocks(path):
        index.add(np.arange(len(index), len(index) + len(block)), block, threads=args.threads)
    seconds = time.perf_counter() - start
    index.save(f"{scratch}/usearch")

    def search(vector, k, ef):
        index.expansion_search = ef
        return index.search(vector, k, threads=1).keys.tolist()

    return seconds, os.path.getsize(f"{scratch}/usearch"), search


PEERS = {"faiss": with_faiss, "usearch": with_usearch}


def peer(args):
    """One of the others, in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        truth = json.loads(Path(args.truth).read_text())
        seconds, size, search = PEERS[args.peer](args.vectors, args, scratch)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        queries = np.load(args.vectors, mmap_mode="r")[truth["rows"]]
        queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
        settings = asked(search, queries, truth["rows"], [set(best) for best in truth["best"]])
    print(json.dumps({"seconds": round(seconds, 1), "mb": round(size / 1e6, 1), "memory_mb": round(memory / 1024, 1), "settings": settings}))


def with_kiln(args, scratch):
    command = [args.kiln, "index", "--json", "--quiet", "--input", args.vectors, "--output", f"{scratch}/index", "--recall", str(args.queries)]
    command += ["--connectivity", str(M), "--expansion-add", str(args.expansion_add)]
    environment = {**os.environ, "RAYON_NUM_THREADS": str(args.threads)}
    said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    settings = [
        {"ef": one["expansion"], "recall": round(one["recall"], 4), "p50_ms": round(one["p50_ms"], 3)}
        for one in said["recall"]
        if one["expansion"] in EXPANSIONS
    ]
    return {"seconds": round(said["seconds"], 1), "mb": round(said["bytes"] / 1e6, 1), "memory_mb": round(memory / 1024, 1), "settings": settings}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vectors")
    parser.add_argument("--kiln")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--expansion-add", type=int, default=128)
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--truth", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return peer(args)
    with tempfile.TemporaryDirectory() as scratch:
        # The command's children are measured by the largest of them: it goes first.
        result = {"kiln": with_kiln(args, scratch)}
        vectors = load(args.vectors)
        rows = np.sort(np.random.default_rng(0).choice(len(vectors), min(args.queries, len(vectors)), replace=False))
        truth = {"rows": rows.tolist(), "best": [sorted(best) for best in exact(vectors, rows)]}
        result |= {"rows": len(vectors), "dimensions": vectors.shape[1], "threads": args.threads}
        del vectors
        Path(f"{scratch}/truth").write_text(json.dumps(truth))
        for name in PEERS:
            command = [sys.executable, __file__, args.vectors, "--peer", name, "--truth", f"{scratch}/truth", "--threads", str(args.threads)]
            command += ["--expansion-add", str(args.expansion_add)]
            result[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
