"""Embeds texts with a peer; run by `kiln bench`.

usage: peers.py missing JOB.json        what each peer lacks, as one JSON line: {NAME: null or a reason}
       peers.py prepare JOB.json NAMES  writes the files that these peers read
       peers.py measure JOB.json NAME   embeds the texts and prints one JSON line: {"seconds": [..], "peak_mb": N}

JOB: model (folder), pooling (its name), modules (whether sentence-transformers pools as the folder says), texts (a
JSON list), batch, max_length (0: the model's), runs, one_at_a_time, gguf (or null), onnx and q8_0 (files that
`prepare` writes), out (.npy).
"""

import importlib.util
import json
import os
import pathlib
import resource
import sys
import time

import numpy as np


def export(model_path, onnx_path):
    import torch
    from transformers import AutoModel, AutoTokenizer
    model = AutoModel.from_pretrained(model_path, attn_implementation="eager", dtype=torch.float32).eval()
    inputs = dict(AutoTokenizer.from_pretrained(model_path)(["a b", "c d e f"], padding=True, return_tensors="pt"))
    names = list(inputs)

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *values):
            return self.model(**dict(zip(names, values))).last_hidden_state

    axes = {name: {0: "batch", 1: "seq"} for name in names + ["last_hidden_state"]}
    torch.onnx.export(Wrapped(), tuple(inputs.values()), onnx_path, input_names=names,
                      output_names=["last_hidden_state"], dynamic_axes=axes, opset_version=17, dynamo=False)


def quantize_gguf(gguf, q8_0):
    """The same weights in Q8_0, whatever the file holds."""
    import llama_cpp
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0
    settings.allow_requantize = True
    if llama_cpp.llama_model_quantize(gguf.encode(), q8_0.encode(), settings):
        sys.exit(f"llama.cpp cannot write {gguf} in Q8_0")


def most_tokens(job):
    folder = pathlib.Path(job["model"])
    for name, key in [("sentence_bert_config.json", "max_seq_length"), ("config.json", "max_position_embeddings")]:
        if job["max_length"]:
            break
        if (folder / name).exists():
            job["max_length"] = json.loads((folder / name).read_text()).get(key) or 0
    return job["max_length"] or 512


def tokenizer_of(job):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(f"{job['model']}/tokenizer.json")
    tokenizer.enable_truncation(most_tokens(job))
    tokenizer.no_padding()
    return tokenizer


def sentence_transformers(job, dtype="float32"):
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    kwargs = {"dtype": getattr(torch, dtype)}
    if job["modules"] and pathlib.Path(job["model"], "modules.json").exists():
        model = SentenceTransformer(job["model"], device="cpu", model_kwargs=kwargs)
    else:
        transformer = Transformer(job["model"], model_kwargs=kwargs)
        # Texts are no messages: without this an instruction-tuned model's chat template goes around each.
        transformer.processor.chat_template = None
        transformer.modality_config.pop("message", None)
        modes = {"last_token": "lasttoken", "weighted_mean": "weightedmean"}
        pooling = Pooling(
            transformer.get_embedding_dimension(), pooling_mode=modes.get(job["pooling"], job["pooling"]))
        model = SentenceTransformer(modules=[transformer, pooling, Normalize()], device="cpu")
    if job["max_length"]:
        model.max_seq_length = job["max_length"]
    return lambda texts: model.encode(texts, batch_size=job["batch"], show_progress_bar=False)


def pooled(hidden, mask, mode):
    """One vector of norm 1 for each row of states; padding is on the right."""
    if mode == "cls":
        vectors = hidden[:, 0]
    elif mode == "last_token":
        vectors = hidden[np.arange(len(hidden)), mask.sum(1) - 1]
    else:
        vectors = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def graph(job, names, run):
    """Pools what `run` makes of a batch's arrays; texts are sorted by length, as in the other engines."""
    tokenizer = tokenizer_of(job)

    def encode(texts):
        rows = tokenizer.encode_batch(texts)
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i].ids))
        out = [None] * len(rows)
        for start in range(0, len(order), job["batch"]):
            part = order[start:start + job["batch"]]
            width = len(rows[part[0]].ids)
            ids = np.zeros((len(part), width), np.int64)
            mask = np.zeros_like(ids)
            for i, row in enumerate(part):
                ids[i, :len(rows[row].ids)] = rows[row].ids
                mask[i, :len(rows[row].ids)] = 1
            feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            hidden = run({name: feed[name] for name in names})
            for row, vector in zip(part, pooled(hidden, mask, job["pooling"])):
                out[row] = vector
        return np.stack(out)

    return encode


def onnxruntime(job, path=None):
    import onnxruntime
    session = onnxruntime.InferenceSession(path or job["onnx"], providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    return graph(job, names, lambda feed: session.run(None, feed)[0])


def onnxruntime_int8(job):
    """Weights and activations in int8, as ONNX Runtime's dynamic quantization makes them."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    int8 = f"{job['onnx']}.int8.onnx"
    quantize_dynamic(job["onnx"], int8, weight_type=QuantType.QInt8)
    return onnxruntime(job, int8)


def openvino(job, precision="f32"):
    import openvino
    core = openvino.Core()
    # One request at a time has all cores, as with the other engines.
    hints = {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}
    model = core.compile_model(core.read_model(job["onnx"]), "CPU", hints)
    names = [entry.get_any_name() for entry in model.inputs]
    return graph(job, names, lambda feed: model(feed)[0])


def llama_cpp(job):
    import llama_cpp
    tokenizer = tokenizer_of(job)
    longest, threads = most_tokens(job), len(os.sched_getaffinity(0))
    # A text has to fit a batch; where several do, they share one.
    tokens = max(longest, 512)
    poolings = {"cls": llama_cpp.LLAMA_POOLING_TYPE_CLS, "last_token": llama_cpp.LLAMA_POOLING_TYPE_LAST}
    pooling = poolings.get(job["pooling"], llama_cpp.LLAMA_POOLING_TYPE_MEAN)
    model = llama_cpp.Llama(
        job["q8_0"], embedding=True, pooling_type=pooling, n_ctx=tokens, n_batch=tokens, n_ubatch=tokens,
        n_threads=threads, n_threads_batch=threads, verbose=False)

    def encode(texts):
        # Its own cut is at the batch's size.
        ends = [row.offsets[-1][1] if len(row.ids) == longest else None for row in tokenizer.encode_batch(texts)]
        return model.embed([text[:end] for text, end in zip(texts, ends)], normalize=True)

    return encode


# What each peer imports, and what makes its encoder.
PEERS = {
    "sentence-transformers": (["torch", "sentence_transformers"], sentence_transformers),
    "sentence-transformers-bf16": (
        ["torch", "sentence_transformers"], lambda job: sentence_transformers(job, "bfloat16")),
    "onnxruntime": (["torch", "transformers", "onnx", "onnxruntime"], onnxruntime),
    "onnxruntime-int8": (["torch", "transformers", "onnx", "onnxruntime"], onnxruntime_int8),
    "openvino": (["torch", "transformers", "onnx", "openvino"], openvino),
    "openvino-bf16": (["torch", "transformers", "onnx", "openvino"], lambda job: openvino(job, "bf16")),
    "llama-cpp": (["tokenizers", "llama_cpp"], llama_cpp),
}
INSTALL = " (`tests/setup.sh python llama` installs what the peers need)"


def has_bf16():
    """Whether OpenVINO multiplies in bfloat16 here; asked for it elsewhere, it computes in f32 and says nothing."""
    import openvino
    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def missing(job):
    reasons = {}
    for name, (modules, _) in PEERS.items():
        lacking = [module for module in modules if importlib.util.find_spec(module) is None]
        reasons[name] = f"this Python has no {', '.join(lacking)}{INSTALL}" if lacking else None
        if not lacking and not name.startswith("sentence-") and job["pooling"] not in ("mean", "cls", "last_token"):
            reasons[name] = f"it does not pool by {job['pooling']}"
    if not reasons["openvino-bf16"] and not has_bf16():
        reasons["openvino-bf16"] = "this processor has no bfloat16"
    if not job["gguf"]:
        reasons["llama-cpp"] = reasons["llama-cpp"] or "--gguf names no file"
    return reasons


def prepare(job, names):
    if any(name.startswith(("onnxruntime", "openvino")) for name in names):
        export(job["model"], job["onnx"])
    if "llama-cpp" in names:
        quantize_gguf(job["gguf"], job["q8_0"])


def measure(job, name):
    texts = json.loads(pathlib.Path(job["texts"]).read_text())
    encode = PEERS[name][1](job)
    parts = [[text] for text in texts] if job["one_at_a_time"] else [texts]
    for part in parts[:8]:
        encode(part[:job["batch"]])
    seconds = []
    for _ in range(job["runs"]):
        vectors = []
        for part in parts:
            start = time.perf_counter()
            vectors.extend(encode(part))
            seconds.append(time.perf_counter() - start)
    np.save(job["out"], np.asarray(vectors, np.float32))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"seconds": seconds, "peak_mb": peak}


def main():
    action, job, *names = sys.argv[1:]
    job = json.loads(pathlib.Path(job).read_text())
    if action == "prepare":
        return prepare(job, names)
    print(json.dumps(missing(job) if action == "missing" else measure(job, *names)))


if __name__ == "__main__":
    main()
