"""Writes a BERT of any size with random weights, to measure speed on: what it computes means nothing.

    python tests/reference/random_encoder.py OUT --tokenizer MODEL [--layers 12] [--hidden 768] [--heads 12] \\
        [--positions 512]

MODEL is a folder with a BERT tokenizer, such as all-MiniLM-L6-v2's (`tests/setup.sh python` installs it). The defaults
are those of bert-base; OUT is a sentence-transformers folder with mean pooling.
"""

import argparse
import json
import pathlib

import torch
from transformers import AutoTokenizer, BertConfig, BertModel


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--tokenizer", required=True, metavar="MODEL")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--positions", type=int, default=512, help="most tokens of a text")
    args = parser.parse_args()

    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    tokenizer.model_max_length = args.positions
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=args.hidden, num_hidden_layers=args.layers,
        num_attention_heads=args.heads, intermediate_size=4 * args.hidden, max_position_embeddings=args.positions,
    )
    out = pathlib.Path(args.out)
    model = BertModel(config, add_pooling_layer=False)
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
