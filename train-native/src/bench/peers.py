"""Embeds texts with a peer and prints one JSON line; run by `kiln bench`.

usage: peers.py export MODEL ONNX
       peers.py sentence-transformers|onnxruntime|"onnxruntime int8" MODEL TEXTS.json BATCH MAX_LENGTH RUNS ONNX OUT.npy
"""

import json
import resource
import sys
import time

import numpy as np


def export(model_path, onnx_path):
    import torch
    from transformers import AutoModel, AutoTokenizer
    model = AutoModel.from_pretrained(model_path, attn_implementation="eager").eval()
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


def sentence_transformers(model_path, batch, max_length, _):
    from sentence_transformers import SentenceTransformer
    model = SentenceTransformer(model_path, device="cpu")
    if max_length:
        model.max_seq_length = max_length
    return lambda texts: model.encode(texts, batch_size=batch, show_progress_bar=False)


def onnxruntime(model_path, batch, max_length, onnx_path):
    import onnxruntime
    from tokenizers import Tokenizer
    session = onnxruntime.InferenceSession(onnx_path, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    tokenizer = Tokenizer.from_file(f"{model_path}/tokenizer.json")
    config = json.load(open(f"{model_path}/sentence_bert_config.json"))
    tokenizer.enable_truncation(max_length or config["max_seq_length"])
    tokenizer.no_padding()

    def encode(texts):
        rows = tokenizer.encode_batch(texts)
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i].ids))
        out = [None] * len(rows)
        for start in range(0, len(order), batch):
            part = order[start:start + batch]
            width = len(rows[part[0]].ids)
            ids = np.zeros((len(part), width), np.int64)
            mask = np.zeros_like(ids)
            for at, row in enumerate(part):
                ids[at, :len(rows[row].ids)] = rows[row].ids
                mask[at, :len(rows[row].ids)] = 1
            feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            hidden = session.run(None, {name: feed[name] for name in names})[0]
            pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
            for at, row in enumerate(part):
                out[row] = pooled[at]
        return np.stack(out)

    return encode


def onnxruntime_int8(model_path, batch, max_length, onnx_path):
    """Weights and activations in int8, as ONNX Runtime's dynamic quantization makes them."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    int8 = f"{onnx_path}.int8.onnx"
    quantize_dynamic(onnx_path, int8, weight_type=QuantType.QInt8)
    return onnxruntime(model_path, batch, max_length, int8)


def main():
    if sys.argv[1] == "export":
        return export(*sys.argv[2:])
    engine, model, texts, batch, max_length, runs, onnx_path, out = sys.argv[1:]
    texts = json.load(open(texts))
    makers = {"sentence-transformers": sentence_transformers, "onnxruntime": onnxruntime,
              "onnxruntime int8": onnxruntime_int8}
    encode = makers[engine](model, int(batch), int(max_length), onnx_path)
    encode(texts[:int(batch)])
    seconds = []
    for _ in range(int(runs)):
        start = time.perf_counter()
        vectors = encode(texts)
        seconds.append(time.perf_counter() - start)
    np.save(out, np.asarray(vectors, np.float32))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"seconds": seconds, "peak_mb": peak}))


if __name__ == "__main__":
    main()
