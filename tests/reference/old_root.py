#!/usr/bin/env python3
"""What tests/old_root.sh asks: what the package computes (by a Python as old as 3.9), and whether two have the same bits.

    old_root.py package TEXTS FOLDER
    old_root.py same HERE THERE NAME...
"""

import json
import sys
from array import array
from pathlib import Path


def package(texts, folder):
    """Uses what the wheel has, and leaves the numbers in the folder."""
    import numpy as np

    from kiln_embed import Embedder, Index, Reranker, __version__

    lines = Path(texts).read_text(encoding="utf-8").splitlines()
    embedder = Embedder(device="cpu")
    vectors = embedder.encode(lines)
    assert vectors.dtype == np.float32 and vectors.shape == (len(lines), 384), (vectors.dtype, vectors.shape)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert (embedder.encode(lines[3]) == vectors[3]).all()
    assert len(embedder.encode_arrow(lines)) == len(lines)
    try:
        embedder.encode([lines[0], None])
    except TypeError as error:
        assert "sentences[1] is NoneType" in str(error), error
    else:
        raise AssertionError("None has a vector")

    index = Index.from_vectors(vectors, "int8")
    index.save(f"{folder}/texts.kidx", overwrite=True)
    with Index.load(f"{folder}/texts.kidx") as loaded:
        hits = loaded.search(vectors, k=3)
    assert (hits.rows[:, 0] == np.arange(len(lines))).all(), hits.rows[:, 0]

    pairs = [tuple(pair) for pair in json.loads(Path("rerankers/pairs.json").read_text(encoding="utf-8"))]
    scores = Reranker("rerankers/bert", device="cpu").predict(pairs)

    vectors.tofile(f"{folder}/vectors.f32")
    scores.tofile(f"{folder}/scores.f32")
    Path(folder, "hits.json").write_text(json.dumps([hits.rows.tolist(), hits.scores.tolist()]))
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"kiln_embed {__version__}, Python {python}, NumPy {np.__version__}: {len(lines)} vectors, {len(scores)} scores")


def same(here, there, *names):
    """Whether files have the same bytes; of numbers, how far away they are."""
    for name in names:
        one, other = Path(here, name).read_bytes(), Path(there, name).read_bytes()
        if one == other and one:
            print(f"{name}: the same {len(one)} bytes")
            continue
        far = ""
        if name.endswith((".f32", ".npy")) and len(one) == len(other):
            pairs = [(a, b) for a, b in zip(array("f", one), array("f", other)) if a != b]
            far = f": {len(pairs)} numbers differ, by up to {max((abs(a - b) for a, b in pairs), default=0)}"
        sys.exit(f"error: {name} has {len(one)} bytes here and {len(other)} there, and they are not the same{far}")


if __name__ == "__main__":
    {"package": package, "same": same}[sys.argv[1]](*sys.argv[2:])
