"""Writes a sentence-transformers model as transformers.js reads it: the same weights in f32 and in int8.

    export_onnx.py MODEL OUT
"""

import shutil
import sys
from pathlib import Path

from onnxruntime.quantization import QuantType, quantize_dynamic

sys.path.insert(0, str(Path(__file__).parents[3] / "train-native/src/bench"))
from peers import export

source, out = Path(sys.argv[1]), Path(sys.argv[2])
(out / "onnx").mkdir(parents=True, exist_ok=True)
for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"]:
    if (source / name).exists():
        shutil.copy(source / name, out / name)
export(str(source), str(out / "onnx/model.onnx"))
quantize_dynamic(out / "onnx/model.onnx", out / "onnx/model_quantized.onnx", weight_type=QuantType.QInt8)
