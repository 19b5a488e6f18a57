"""Writes an encoder of any size with random weights, to measure speed on: what it computes means nothing.

    python tests/reference/random_encoder.py OUT --tokenizer MODEL [--family bert] [--layers 12] [--hidden 768] \\
        [--heads 12] [--intermediate 3072] [--positions 512]

MODEL is a folder with a BERT tokenizer, such as all-MiniLM-L6-v2's (`tests/setup.sh python` installs it). The defaults
are those of bert-base and mpnet-base (ModernBERT-base: --family modernbert --layers 22 --intermediate 1152);
OUT is a sentence-transformers folder with mean pooling.
"""

import argparse
import json
import pathlib

import torch
from transformers import (AutoTokenizer, BertConfig, BertModel, GteConfig, GteModel, ModernBertConfig, ModernBertModel,
                          MPNetConfig, MPNetModel, NomicBertConfig, NomicBertModel)

FAMILIES = {"bert": (BertConfig, BertModel), "mpnet": (MPNetConfig, MPNetModel),
            "modernbert": (ModernBertConfig, ModernBertModel), "nomic-bert": (NomicBertConfig, NomicBertModel),
            "gte": (GteConfig, GteModel)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--tokenizer", required=True, metavar="MODEL")
    parser.add_argument("--family", choices=FAMILIES, default="bert")
    parser.add_argument("--intermediate", type=int, help="width inside the feed-forward [default: 4 times hidden]")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--positions", type=int, default=512, help="most tokens of a text")
    args = parser.parse_args()

    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    tokenizer.model_max_length = args.positions
    config_class, model_class = FAMILIES[args.family]
    # MPNet's positions begin at 2.
    positions = args.positions + (2 if args.family == "mpnet" else 0)
    special = dict(pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.cls_token_id,
                   eos_token_id=tokenizer.sep_token_id)
    config = config_class(
        vocab_size=len(tokenizer), hidden_size=args.hidden, num_hidden_layers=args.layers,
        num_attention_heads=args.heads, intermediate_size=args.intermediate or 4 * args.hidden,
        max_position_embeddings=positions, **special,
    )
    out = pathlib.Path(args.out)
    options = {"add_pooling_layer": False} if args.family in ("bert", "mpnet") else {}
    model = model_class(config, **options)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    modules = ["Transformer", "Pooling", "Normalize"]
    paths = ["", "1_Pooling", "2_Normalize"]
    files = {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{module}"}
            for i, (module, path) in enumerate(zip(modules, paths))
        ],
        "sentence_bert_config.json": {"max_seq_length": args.positions, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": args.hidden, "pooling_mode_mean_tokens": True},
    }
    for name, content in files.items():
        path = out / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n")
    print(f"{out}: {sum(value.numel() for value in model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
