#!/usr/bin/env python3
"""Writes tests/fixtures/gguf.json: blocks of every kind of numbers that Kiln reads from GGUF, and what
llama.cpp's own package makes of them. The numbers are kept by their bits.

    python tests/reference/gguf_blocks.py
"""

import json
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

draw = np.random.default_rng(7)
# Where a block has numbers in half precision, which random bytes would make infinite: scales, and what
# the numbers of a block begin at.
HALVES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0],
}


def blocks(kind):
    """Random bytes of some blocks, one a row."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    count = max(1, 64 // block)
    match kind:
        case T.F32 | T.F16 | T.F64:
            numbers = draw.normal(0, 1, (count, 1))
            return numbers.astype({T.F32: "<f4", T.F16: "<f2", T.F64: "<f8"}[kind]).view(np.uint8)
        case T.BF16:
            return draw.normal(0, 1, (count, 1)).astype("<f4").view(np.uint8)[:, 2:].copy()
    data = draw.integers(0, 256, (count, size), dtype=np.uint8)
    for at in HALVES.get(kind, []):
        data[:, at : at + 2] = draw.normal(0, 0.01, (count, 1)).astype("<f2").view(np.uint8)
    if kind == T.Q8_K:
        data[:, :4] = draw.normal(0, 0.01, (count, 1)).astype("<f4").view(np.uint8)
    return data


def numbers(data, kind):
    match kind:
        case T.F64:
            return data.view("<f8").astype(np.float32)
        # llama.cpp's package reads neither: both are plain enough.
        case T.Q8_K:
            return data[:, :4].copy().view("<f4") * data[:, 4:260].view(np.int8).astype(np.float32)
        case _:
            return gguf.quants.dequantize(data, kind)


cases = []
for kind in [T.F32, T.F16, T.BF16, T.F64, T.Q8_K, *HALVES]:
    data = blocks(kind)
    found = np.ascontiguousarray(numbers(data, kind), dtype=np.float32)
    assert np.isfinite(found).all()
    cases.append({
        "kind": kind.name,
        "id": int(kind),
        "block": gguf.GGML_QUANT_SIZES[kind][0],
        "data": data.tobytes().hex(),
        "bits": found.view(np.uint32).ravel().tolist(),
    })
target = Path(__file__).parents[1] / "fixtures/gguf.json"
target.write_text("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n")
