"""Makes tests/fixtures/settings.json: what sentence-transformers makes of a model's files beside its shape.

    python tests/reference/settings.py

Each case is a small copy of a named model (tests/fixtures/models) with some files changed: keys that are put into one, or
null for a file that is taken away. For each the fixture has the longest text in tokens, how vectors are compared, and the vectors of
some texts, of documents and of queries.
"""

import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer, __version__

from named_models import weights

FIXTURES = Path(__file__).parent.parent / "fixtures"
TEXTS = ["how do bees make honey", "The Train to the North leaves at noon, and comes back at night", "A Café"]

BERT, QWEN, ROBERTA = ("sentence-transformers/all-MiniLM-L6-v2", "Qwen/Qwen3-Embedding-0.6B",
                       "sentence-transformers/all-distilroberta-v1")
SETTINGS, CALLS, TOKENS = "config_sentence_transformers.json", "sentence_bert_config.json", "tokenizer_config.json"
LOOSE = {"modules.json": None, "1_Pooling/config.json": None, CALLS: None}
# A tokenizer as BERT's, with words that only one normalizer leaves as they are.
VOCABULARY = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "a", "A", "cafe", "café", "Cafe", "Café", "the", "The", "train", "Train"]
WORDS = {"normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                        "lowercase": True},
         "pre_tokenizer": {"type": "BertPreTokenizer"},
         "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                   "vocab": {word: number for number, word in enumerate(VOCABULARY)}}}
ALL_PROMPTS = {"query": "find: ", "document": "text: ", "passage": "other: "}

CASES = [
    (BERT, {}),
    # How vectors are cut and compared.
    (BERT, {SETTINGS: {"similarity_fn_name": "dot"}}),
    (BERT, {SETTINGS: {"similarity_fn_name": "euclidean"}}),
    (BERT, {SETTINGS: {"similarity_fn_name": "manhattan"}}),
    (BERT, {SETTINGS: {"similarity_fn_name": None}}),
    (BERT, {SETTINGS: {"truncate_dim": 8}}),
    (BERT, {SETTINGS: {"truncate_dim": 8, "similarity_fn_name": "dot"}}),
    # Prompts. Where there is `passage` or `corpus` and no `document`, sentence-transformers' own empty `document` comes first;
    # Kiln takes them, as its documentation says.
    (BERT, {SETTINGS: {"prompts": ALL_PROMPTS}}),
    (BERT, {SETTINGS: {"prompts": ALL_PROMPTS, "default_prompt_name": "passage"}}),
    (BERT, {SETTINGS: {"prompts": {"note": "a note: "}, "default_prompt_name": "note"}}),
    (BERT, {SETTINGS: {"prompts": ALL_PROMPTS}, "1_Pooling/config.json": {"include_prompt": False}}),
    # How long texts may be, and what else the module of the transformer is told.
    (BERT, {CALLS: {"max_seq_length": 7}}),
    (BERT, {CALLS: {"max_seq_length": None}}),
    (BERT, {CALLS: None, TOKENS: {"model_max_length": 9}}),
    (BERT, {CALLS: None, TOKENS: {"model_max_length": 10**30}}),
    (BERT, {CALLS: None, "sentence_roberta_config.json": {"max_seq_length": 6}}),
    (BERT, {CALLS: {"max_seq_length": None, "tokenizer_args": {"model_max_length": 8}}}),
    (BERT, {CALLS: {"max_seq_length": None, "processor_kwargs": {"model_max_length": 8}}}),
    (BERT, {"tokenizer.json": {"normalizer": None}}),
    (BERT, {"tokenizer.json": {"normalizer": None}, CALLS: {"do_lower_case": True}}),
    (BERT, {"tokenizer.json": {"normalizer": None}, CALLS: {"do_lower_case": True}, SETTINGS: {"prompts": {"query": "FIND: "}}}),
    (BERT, {CALLS: {"config_args": {"hidden_act": "relu"}}}),
    (BERT, {CALLS: {"config_kwargs": {"hidden_act": "relu"}}}),
    # Without a list of modules.
    (BERT, LOOSE),
    (ROBERTA, LOOSE),
    (QWEN, LOOSE),
    (QWEN, LOOSE | {"config.json": {"architectures": ["Qwen3Model"]}}),
    (QWEN, LOOSE | {"config.json": {"is_causal": False}}),
    # How the pooling is written.
    (BERT, {"1_Pooling/config.json": {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}}),
    (BERT, {"1_Pooling/config.json": {"pooling_mode": "cls"}}),
    (BERT, {"1_Pooling/config.json": {"pooling_mode_mean_tokens": False, "pooling_mode_weightedmean_tokens": True}}),
    # What a tokenizer's class says of its normalizer.
    *[(BERT, {"tokenizer.json": WORDS, TOKENS: {"tokenizer_class": name} | more})
      for name in ["BertTokenizer", "PreTrainedTokenizerFast"]
      for more in [{}, {"do_lower_case": False}, {"do_lower_case": True}, {"strip_accents": False}]],
]


def folder_of(name, changes, to):
    """Writes a copy of a named model with changed files."""
    models = FIXTURES / "models"
    model = json.loads((models / f"{name.replace('/', '--')}.json").read_text())
    tokenizer = json.loads((models / f"tokenizers/{model['tokenizer']}.json").read_text())
    files = {"config.json": model["config"], "tokenizer.json": tokenizer, **model["files"]}
    for file, keys in changes.items():
        if keys is None:
            del files[file]
        else:
            files[file] = files.get(file, {}) | keys
    for file, content in files.items():
        (to / file).parent.mkdir(exist_ok=True)
        (to / file).write_text(json.dumps(content))
    for file, shapes in model["tensors"].items():
        save_file({key: weights(key, shape) for key, shape in shapes.items()}, to / file, {"format": "pt"})


def rounded(vectors):
    return [[float(f"{value:.7g}") for value in vector] for vector in vectors.tolist()]


def case(name, changes):
    with tempfile.TemporaryDirectory() as scratch:
        folder_of(name, changes, Path(scratch))
        model = SentenceTransformer(scratch, device="cpu", local_files_only=True, model_kwargs={"attn_implementation": "eager", "dtype": torch.float32})
        model.eval()
        made = {"model": name, "changes": changes, "max_seq_length": model.max_seq_length, "similarity": model.similarity_fn_name,
                "document": rounded(model.encode_document(TEXTS))}
        queries = rounded(model.encode_query(TEXTS))
        return made if queries == made["document"] else made | {"query": queries}


def main():
    made = {"sentence-transformers": __version__, "texts": TEXTS, "cases": []}
    for name, changes in CASES:
        made["cases"].append(case(name, changes))
        last = made["cases"][-1]
        print(name.split("/")[1], json.dumps(changes), last["max_seq_length"], last["similarity"], last["document"][1][:2], "query" in last)
    text = json.dumps(made, ensure_ascii=False)
    (FIXTURES / "settings.json").write_text(text.replace('{"model"', '\n{"model"') + "\n")


if __name__ == "__main__":
    main()
