"""The Python package beside fastembed and sentence-transformers: the same model, the same texts, in one run.

    python python_peers.py MODEL [--texts N] [--rounds N] [--threads N]

MODEL is all-MiniLM-L6-v2's folder. The environment has the package's wheel, fastembed and what `tests/setup.sh python`
installs. Each engine encodes the same made-up texts of 3 to 42 words in a process of its own, in turns; fastembed gets the
model as ONNX, exported here, and in int8 as ONNX Runtime quantizes it. Prints JSON: texts a second, medians and all rounds;
Kiln's speed over each engine's in like numbers; and the smallest cosine to sentence-transformers' vectors.
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

import numpy as np

ENGINES = ["kiln", "kiln int8:128", "sentence-transformers", "fastembed", "fastembed int8"]


def texts(count):
    """Texts of 3 to 42 words, all different."""
    from python_speed import texts

    return texts(count)


def export(model, folder):
    """The model as fastembed reads it, and once more in int8."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "train-native/src/bench"))
    import peers
    from onnxruntime.quantization import QuantType, quantize_dynamic

    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]:
        (folder / file).write_bytes((model / file).read_bytes())
    peers.export(str(model), str(folder / "model.onnx"))
    quantize_dynamic(str(folder / "model.onnx"), str(folder / "int8.onnx"), weight_type=QuantType.QInt8)


def load(engine, model, folder, threads):
    """`encode(texts)` of an engine."""
    if engine.startswith("kiln"):
        from kiln_embed import Embedder

        embedder = Embedder(str(model), device="cpu", weights=engine.partition(" ")[2] or None)
        return lambda rows: embedder.encode(rows)
    if engine == "sentence-transformers":
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        known = SentenceTransformer(str(model), device="cpu")
        return lambda rows: known.encode(rows, normalize_embeddings=True)
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    file = "int8.onnx" if engine.endswith("int8") else "model.onnx"
    TextEmbedding.add_custom_model(
        model="local/minilm", pooling=PoolingType.MEAN, normalization=True, sources=ModelSource(hf="local/minilm"), dim=384, model_file=file
    )
    known = TextEmbedding("local/minilm", specific_model_path=str(folder), threads=threads)
    return lambda rows: np.stack(list(known.embed(rows, batch_size=32)))


def measure(args):
    """One engine, in a process of its own."""
    rows = texts(args.texts)
    encode = load(args.engine, args.model, args.folder, args.threads)
    encode(rows[:64])
    begun = time.perf_counter()
    vectors = encode(rows)
    seconds = time.perf_counter() - begun
    np.save(args.folder / f"{args.engine}.npy", vectors)
    print(json.dumps(seconds))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        return measure(args)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        export(args.model, folder)
        seconds = {engine: [] for engine in ENGINES}
        for _ in range(args.rounds):
            for engine in ENGINES:
                command = [sys.executable, __file__, args.model, "--texts", str(args.texts), "--threads", str(args.threads)]
                command += ["--engine", engine, "--folder", folder]
                environment = {**os.environ, "RAYON_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
                said = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
                seconds[engine].append(json.loads(said.splitlines()[-1]))
        vectors = {engine: np.load(folder / f"{engine}.npy") for engine in ENGINES}
    middle = {engine: statistics.median(all) for engine, all in seconds.items()}
    truth = vectors["sentence-transformers"]
    rows = {}
    for engine in ENGINES:
        ours = "kiln int8:128" if engine.endswith("int8") else "kiln"
        unit = vectors[engine] / np.linalg.norm(vectors[engine], axis=1, keepdims=True)
        rows[engine] = {
            "texts_per_second": round(args.texts / middle[engine], 1),
            "rounds": [round(args.texts / one, 1) for one in seconds[engine]],
            "kiln_ratio": round(middle[engine] / middle[ours], 2),
            "smallest_cosine": round(float((unit * truth).sum(1).min()), 5),
        }
    print(json.dumps({"texts": args.texts, "threads": args.threads, "engines": rows}, indent=1))


if __name__ == "__main__":
    main()
