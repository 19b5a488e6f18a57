"""The Python package beside what people would use in its place: the same model, the same texts, in one run.

    python python_peers.py MODEL [embed] [rerank] [static] [--texts N] [--rounds N] [--threads N]

MODEL is all-MiniLM-L6-v2's folder. The environment has the package's wheel, fastembed, model2vec and what `tests/setup.sh
python` installs. Each engine works in a process of its own, in turns, on made-up texts of 3 to 42 words:

* embed: all-MiniLM-L6-v2, beside sentence-transformers and fastembed, which gets it as ONNX (exported here), and in int8 as
  ONNX Runtime quantizes it;
* rerank: 100 pairs by a cross-encoder of MiniLM's shape with random weights, beside sentence-transformers and ONNX Runtime;
* static: a table of random vectors (256 dimensions) for MiniLM's tokens, beside model2vec.

Prints JSON: texts (or pairs) a second, medians and all rounds; Kiln's speed over each engine's in like numbers; and how far
results are from those of the first peer: the smallest cosine, or the largest difference of scores.
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

WORK = {
    "embed": ["sentence-transformers", "kiln", "kiln int8:128", "fastembed", "fastembed int8"],
    "rerank": ["sentence-transformers", "kiln", "kiln int8:128", "onnxruntime", "onnxruntime int8"],
    "static": ["model2vec", "kiln"],
}


def texts(count):
    from python_speed import texts

    return texts(count)


def quantized(folder):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(str(folder / "model.onnx"), str(folder / "int8.onnx"), weight_type=QuantType.QInt8)


def prepare_embed(model, folder):
    sys.path.insert(0, str(Path(__file__).parents[2] / "train-native/src/bench"))
    import peers

    for file in model.rglob("*"):
        if file.is_file():
            copy = folder / file.relative_to(model)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    peers.export(str(model), str(folder / "model.onnx"))
    quantized(folder)


def prepare_rerank(model, folder):
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.model_max_length = 512
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, num_labels=1
    )
    network = BertForSequenceClassification(config).eval()
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, ids, mask, types):
            return self.network(input_ids=ids, attention_mask=mask, token_type_ids=types).logits

    inputs = tokenizer([("a b", "c d e"), ("c", "d")], padding=True, return_tensors="pt")
    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {name: {0: "batch", 1: "seq"} for name in names} | {"logits": {0: "batch"}}
    torch.onnx.export(
        Wrapped(), tuple(inputs[name] for name in names), str(folder / "model.onnx"), input_names=names, output_names=["logits"],
        dynamic_axes=axes, opset_version=17, dynamo=False,
    )  # fmt: skip
    quantized(folder)


def prepare_static(model, folder):
    from model2vec import StaticModel
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    vectors = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 256)).astype(np.float32)
    StaticModel(vectors=vectors, tokenizer=tokenizer, config={"normalize": True}).save_pretrained(str(folder))


def embed_by(engine, folder, threads):
    if engine.startswith("kiln"):
        from kiln_embed import Embedder

        return Embedder(str(folder), device="cpu", weights=engine.partition(" ")[2] or None).encode
    if engine == "sentence-transformers":
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        known = SentenceTransformer(str(folder), device="cpu")
        return lambda rows: known.encode(rows, normalize_embeddings=True)
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    file = "int8.onnx" if engine.endswith("int8") else "model.onnx"
    source = ModelSource(hf="local/minilm")
    TextEmbedding.add_custom_model("local/minilm", pooling=PoolingType.MEAN, normalization=True, sources=source, dim=384, model_file=file)
    known = TextEmbedding("local/minilm", specific_model_path=str(folder), threads=threads)
    return lambda rows: np.stack(list(known.embed(rows, batch_size=32)))


def rerank_by(engine, folder, threads):
    if engine.startswith("kiln"):
        from kiln_embed import Reranker

        known = Reranker(str(folder), device="cpu", weights=engine.partition(" ")[2] or None)
        return lambda pairs: known.predict(pairs, activate=False)
    if engine == "sentence-transformers":
        import torch
        from sentence_transformers import CrossEncoder

        torch.set_num_threads(threads)
        known = CrossEncoder(str(folder), device="cpu")
        return lambda pairs: known.predict(pairs, activation_fn=torch.nn.Identity())
    import onnxruntime
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(512)
    tokenizer.no_padding()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    file = "int8.onnx" if engine.endswith("int8") else "model.onnx"
    session = onnxruntime.InferenceSession(str(folder / file), options, providers=["CPUExecutionProvider"])

    def scores(pairs):
        rows = tokenizer.encode_batch(pairs)
        order = sorted(range(len(rows)), key=lambda row: -len(rows[row].ids))
        out = np.zeros(len(rows), np.float32)
        for start in range(0, len(order), 32):
            part = order[start : start + 32]
            ids, mask, types = np.zeros((3, len(part), len(rows[part[0]].ids)), np.int64)
            for at, row in enumerate(part):
                count = len(rows[row].ids)
                ids[at, :count], mask[at, :count], types[at, :count] = rows[row].ids, 1, rows[row].type_ids
            out[part] = session.run(None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": types})[0][:, 0]
        return out

    return scores


def static_by(engine, folder, threads):
    if engine == "kiln":
        from kiln_embed import Embedder

        return Embedder(str(folder), device="cpu").encode
    from model2vec import StaticModel

    return StaticModel.from_pretrained(str(folder)).encode


def measure(args):
    """One engine, in a process of its own."""
    work = args.work[0]
    rows = texts(args.texts)
    if work == "rerank":
        rows = [(rows[0], row) for row in rows[1:101]]
    elif work == "static":
        rows = rows * 20
    run = {"embed": embed_by, "rerank": rerank_by, "static": static_by}[work](args.engine, args.folder, args.threads)
    run(rows[:64])
    begun = time.perf_counter()
    results = run(rows)
    seconds = time.perf_counter() - begun
    np.save(args.folder / f"{args.engine}.npy", results)
    print(json.dumps([len(rows), seconds]))


def compare(args, work):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        {"embed": prepare_embed, "rerank": prepare_rerank, "static": prepare_static}[work](args.model, folder)
        rates = {engine: [] for engine in WORK[work]}
        for _ in range(args.rounds):
            for engine in WORK[work]:
                command = [sys.executable, __file__, args.model, work, "--texts", str(args.texts), "--threads", str(args.threads)]
                command += ["--engine", engine, "--folder", folder]
                environment = {**os.environ, "RAYON_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
                said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
                count, seconds = json.loads(said.splitlines()[-1])
                rates[engine].append(count / seconds)
        results = {engine: np.load(folder / f"{engine}.npy") for engine in WORK[work]}
    middle = {engine: statistics.median(all) for engine, all in rates.items()}
    truth = results[WORK[work][0]]
    rows = {}
    for engine in WORK[work]:
        ours = "kiln int8:128" if engine.endswith("int8") else "kiln"
        row = {"a_second": round(middle[engine], 1), "rounds": [round(one, 1) for one in rates[engine]]}
        if not engine.startswith("kiln"):
            row["kiln_ratio"] = round(middle[ours] / middle[engine], 2)
        if work == "rerank":
            row["largest_difference"] = float(f"{np.abs(results[engine] - truth).max():.2g}")
        else:
            norms = np.linalg.norm(results[engine], axis=1) * np.linalg.norm(truth, axis=1)
            row["smallest_cosine"] = round(float(((results[engine] * truth).sum(1) / norms).min()), 6)
        rows[engine] = row
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("work", nargs="*", help="embed, rerank, static [default: all]")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        return measure(args)
    result = {work: compare(args, work) for work in args.work or WORK}
    print(json.dumps({"texts": args.texts, "threads": args.threads} | result, indent=1))


if __name__ == "__main__":
    main()
