"""Makes the fixtures of tests/fixtures/models: a small copy of each named model.

    python tests/reference/named_models.py [gradients] [NAME ..]

`tests/reference/models` has the published configuration of each and where it was found. A copy keeps
every key of it but the sizes (`SIZES`), whose published values stand beside it. Its weights are computed from the
tensors' names and places (`weights`), by the tests as well, so that a fixture is the configuration, the tensors' shapes
and what transformers makes of them: vectors of a few texts, or scores of a few pairs, and gradients by its autograd
(`gradients` writes these alone into fixtures that are there). `FAMILIES` are copies of no model, of families that no named
one is of.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from make_fixtures import (FIXTURES, PAIRS, Head, JinaBert, JinaBertConfig, NomicBertMoe, letters, save_released,
                           yes_or_no)

PUBLISHED = Path(__file__).parent / "models"
TEXTS = sorted({text for pair in PAIRS for text in pair if text})
MAX_LENGTH = 40

BERT = (["[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"], ["[PAD]", "[CLS]", "[SEP]"])
PLAIN = (["[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"], BERT[1])
BOS = ("<s> $A", "<s> $A $B"), ["<s>", "<pad>", "</s>"]
ROBERTA = (["<s> $A </s>", "<s> $A </s> </s> $B </s>"], ["<s>", "<pad>", "</s>"])


CHAT = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "yes", "no"]


def noise(name, count):
    """Values from -1 to 1 that anybody can compute from a name: integer arithmetic, exact in f32."""
    seed = 2166136261
    for byte in name.encode():
        seed = (seed ^ byte) * 16777619 & 0xFFFFFFFF
    x = (np.arange(count, dtype=np.uint64) * 0x9E3779B1 + seed) & 0xFFFFFFFF
    for shift, factor in [(16, 0x7FEB352D), (15, 0x846CA68B)]:
        x = (x ^ x >> shift) * factor & 0xFFFFFFFF
    return ((x ^ x >> 16) >> 8).astype(np.float64) / (1 << 23) - 1


def weights(name, shape):
    """A tensor's values: those of its name, then one product and one sum in f64."""
    values = noise(name, int(np.prod(shape)))
    if len(shape) > 1:
        # About what a trained model's have: every part shows in the output.
        values = values * (1.5 if "embed" in name else 2.5 / shape[-1] ** 0.5)
    elif "norm" in name.lower() and name.endswith("weight"):
        values = values * 0.3 + 1
    else:
        values = values * 0.3
    return torch.from_numpy(values.astype(np.float32)).reshape(shape)


# Published sizes, and what a copy has in their place.
SIZES = {key: value for keys, value in {
    ("hidden_size", "n_embd", "dim", "latent_dim"): 32, ("intermediate_size", "n_inner", "hidden_dim"): 64,
    ("num_hidden_layers", "n_layer", "n_layers"): 3, ("num_attention_heads", "n_head", "n_heads"): 4,
    ("num_latents_value",): 6, ("num_cross_heads",): 4, ("cross_dim_head",): 8,
    ("local_attention", "sliding_window"): 6, ("num_experts",): 4,
}.items() for key in keys}
# Families whose positions are learned, so that these are a table's rows.
LEARNED = {"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet"}


def small(published, tokenizer, top=True):
    """The configuration of a copy, and the published values of what it changes."""
    config, changed = dict(published), {}

    def put(key, value):
        if key in config and config[key] is not None and config[key] != value:
            changed[key], config[key] = config[key], value

    heads = config.get("num_attention_heads")
    if heads and config.get("num_key_value_heads"):
        put("num_key_value_heads", max(1, 4 * config["num_key_value_heads"] // heads))
    if heads and config.get("head_dim"):
        put("head_dim", 8 if config["head_dim"] * heads == config["hidden_size"] else 16)
    layers = 3
    if config.get("num_experts") or config.get("global_attn_every_n_layers"):
        layers = 4
    if config.get("layer_types"):
        layers = 1 + config["layer_types"].index("full_attention") if "full_attention" in config["layer_types"] else 3
        layers = max(layers, 3)
        put("layer_types", config["layer_types"][:layers])
    for key, value in SIZES.items():
        put(key, value)
    for key in ("num_hidden_layers", "n_layer", "n_layers"):
        put(key, layers)
    if config.get("max_window_layers"):
        put("max_window_layers", layers)
    kind = config.get("model_type")
    if kind in LEARNED and config.get("position_embedding_type") not in ("alibi", "rotary"):
        put("max_position_embeddings", 64 + config["max_position_embeddings"] % 256)
    put("vocab_size", len(tokenizer))
    for key, token in [("pad_token_id", tokenizer.pad_token_id), ("bos_token_id", tokenizer.cls_token_id),
                       ("cls_token_id", tokenizer.cls_token_id), ("eos_token_id", tokenizer.sep_token_id),
                       ("sep_token_id", tokenizer.sep_token_id)]:
        put(key, token)
    for key in ("text_config", "latent_attention_config"):
        if isinstance(config.get(key), dict):
            inner, published_sizes = small(config[key], tokenizer, top=False)
            if key == "latent_attention_config":
                # There it is the width of the states, and not of a feed-forward.
                published_sizes["hidden_dim"], inner["hidden_dim"] = published[key]["hidden_dim"], 32
            config[key], changed[key] = inner, published_sizes
    return config, changed


class NvEmbed(torch.nn.Module):
    """NV-Embed as released: Mistral in both directions, and latent attention over its states."""

    def __init__(self, config):
        super().__init__()
        from transformers import MistralConfig, MistralModel
        inner, latent = config["text_config"], config["latent_attention_config"]
        self.embedding_model = MistralModel(MistralConfig(**inner, attn_implementation="eager"))
        self.embedding_model.config.is_causal = False
        width = inner["hidden_size"]
        self.latent_attention_model = Head(latent["latent_dim"], width, latent["num_cross_heads"],
                                           latent["cross_dim_head"], "geglu",
                                           latents=(latent["num_latents_value"], latent["latent_dim"]))

    def forward(self, input_ids, attention_mask):
        states = self.embedding_model(input_ids, attention_mask=attention_mask).last_hidden_state
        head = self.latent_attention_model
        return head.block(states, head.latents.expand(len(states), -1, -1))

    def save_pretrained(self, folder, **_):
        save_file({name: value.contiguous() for name, value in self.state_dict().items()}, folder / "model.safetensors")


class Released(torch.nn.Module):
    """A model of transformers under the names of its release."""

    def __init__(self, name, model):
        super().__init__()
        self.name, self.model = name, model

    def forward(self, input_ids, attention_mask, **_):
        return self.model(input_ids, attention_mask=attention_mask).last_hidden_state

    def save_pretrained(self, folder, **_):
        save_released(self.name, self.model, folder)


class TaskAdapters(torch.nn.Module):
    """jina-embeddings-v3 as first released: beside each weight a stack of adapters, one for each task, as modeling_lora.py
    of jinaai/xlm-roberta-flash-implementation has them."""

    def __init__(self, config):
        super().__init__()
        from transformers import JinaEmbeddingsV3Config, JinaEmbeddingsV3Model
        keys = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                "layer_norm_eps", "max_position_embeddings", "type_vocab_size", "pad_token_id", "hidden_act"]
        rope = dict(rope_type="default", rope_theta=float(config["rotary_emb_base"]))
        own = JinaEmbeddingsV3Config(**{key: config[key] for key in keys}, rope_parameters=rope, attn_implementation="eager")
        self.model = JinaEmbeddingsV3Model(own)
        self.scale = config["lora_alpha"] / config["lora_rank"]
        self.tasks, rank = config["lora_adaptations"], config["lora_rank"]
        width, inner = own.hidden_size, own.intermediate_size
        self.task = None
        # A module as the release has it, with the weights here that it is made of.
        self.parts = {"embeddings.word_embeddings": ["embeddings.word_embeddings"],
                      "embeddings.token_type_embeddings": ["embeddings.token_type_embeddings"], "pooler.dense": ["pooler.dense"]}
        for layer in range(own.num_hidden_layers):
            old, new = f"encoder.layers.{layer}", f"layers.{layer}"
            self.parts[f"{old}.mixer.Wqkv"] = [f"{new}.self_attn.{name}_proj" for name in "qkv"]
            self.parts |= {f"{old}.{theirs}": [f"{new}.{ours}"] for theirs, ours in
                           [("mixer.out_proj", "self_attn.o_proj"), ("mlp.fc1", "mlp.fc1"), ("mlp.fc2", "mlp.fc2")]}
        self.stacks = torch.nn.ParameterDict()
        for module, parts in self.parts.items():
            out, into = self.weight(parts).shape
            table = "embeddings" in module
            shapes = [(out, rank), (rank, into)] if table else [(rank, into), (out, rank)]
            for name, shape in zip("AB", shapes):
                self.stacks[f"{module}.{name}".replace(".", "/")] = torch.nn.Parameter(torch.zeros(len(self.tasks), *shape))

    def weight(self, parts):
        return torch.cat([self.model.get_parameter(f"{part}.weight") for part in parts])

    def forward(self, input_ids, attention_mask, **_):
        tensors = dict(self.model.named_parameters())
        for module, parts in self.parts.items() if self.task else ():
            number = self.tasks.index(self.task)
            a, b = (self.stacks[f"{module}.{name}".replace(".", "/")][number] for name in "AB")
            added = (a @ b if "embeddings" in module else b @ a) * self.scale
            whole = self.weight(parts) + added
            tensors |= {f"{part}.weight": value for part, value in zip(parts, whole.chunk(len(parts)))}
        inputs = dict(input_ids=input_ids, attention_mask=attention_mask)
        return torch.func.functional_call(self.model, tensors, (), inputs).last_hidden_state

    def save_pretrained(self, folder, **_):
        save_released("jina-v3", self.model, folder)
        tensors = load_file(folder / "model.safetensors")
        for module in self.parts:
            name = f"roberta.{module}.parametrizations.weight"
            tensors[f"{name}.original"] = tensors.pop(f"roberta.{module}.weight")
            for matrix in "AB":
                tensors[f"{name}.0.lora_{matrix}"] = self.stacks[f"{module}.{matrix}".replace(".", "/")].data.clone()
        save_file(tensors, folder / "model.safetensors")


class ReleasedClassifier(torch.nn.Module):
    """A reranker with the backbone of `new` models, under the names of its release."""

    def __init__(self, config):
        super().__init__()
        from transformers import GteForSequenceClassification
        self.model = GteForSequenceClassification(gte(config, num_labels=1, classifier_dropout=0.0))
        ntk(self.model.gte, config)

    def forward(self, input_ids, attention_mask, **_):
        return self.model(input_ids, attention_mask=attention_mask)

    def save_pretrained(self, folder, **_):
        save_released("gte", self.model.gte, folder)
        tensors = load_file(folder / "model.safetensors")
        tensors |= {f"classifier.{name}": value.clone() for name, value in self.model.classifier.state_dict().items()}
        save_file(tensors, folder / "model.safetensors")


def gte(config, **more):
    """What transformers calls the keys of `new` models."""
    from transformers import GteConfig
    keys = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
            "layer_norm_eps", "max_position_embeddings", "type_vocab_size", "pad_token_id", "hidden_act"]
    rope = dict(rope_type="default", rope_theta=float(config["rope_theta"]))
    return GteConfig(**{key: config[key] for key in keys}, rope_parameters=rope, attn_implementation="eager", **more)


def ntk(model, config):
    """Rotary positions of `new` models with NTK scaling, as their released code computes them."""
    scaling = config.get("rope_scaling")
    if not scaling:
        return
    assert scaling["type"] == "ntk" and scaling.get("mixed_b") is None, scaling
    dim, factor = config["hidden_size"] // config["num_attention_heads"], scaling["factor"]
    steps = torch.arange(0, dim, 2).float() / dim
    model.rotary_emb.inv_freq = (config["rope_theta"] * factor) ** -steps / factor ** (2 / dim)


def backbone(config, folder):
    """The reference for a configuration: a module from tokens to states `[batch, seq, hidden]`."""
    from transformers import AutoModel, GteModel, NomicBertConfig, NomicBertModel
    # jina-embeddings-v3 has none.
    kind = config.get("model_type", "xlm-roberta")
    if kind == "nvembed":
        return NvEmbed(config)
    if kind == "bert" and config.get("position_embedding_type") == "alibi":
        model = JinaBert(JinaBertConfig(**config))
        forward = model.forward
        model.forward = lambda input_ids, attention_mask, **_: forward(input_ids, attention_mask).hidden_states[-1]
        return model
    if kind == "nomic_bert":
        experts = bool(config.get("num_experts"))
        scaling = config.get("rotary_scaling_factor")
        rope = dict(rope_type="default", rope_theta=float(config["rotary_emb_base"]))
        assert config.get("rotary_emb_fraction", 1.0) == 1.0 and not config.get("rotary_emb_interleaved")
        keys = dict(vocab_size=config["vocab_size"], hidden_size=config["n_embd"], num_hidden_layers=config["n_layer"],
                    num_attention_heads=config["n_head"], intermediate_size=config["n_inner"],
                    type_vocab_size=config["type_vocab_size"], layer_norm_eps=config["layer_norm_epsilon"],
                    max_position_embeddings=config["n_positions"], pad_token_id=config.get("pad_token_id", 0),
                    rope_parameters=rope, attn_implementation="eager")
        # The base grows with a text that is longer than those of training; these texts are not.
        assert scaling is None or config.get("max_trained_positions", 2048) > MAX_LENGTH
        built = NomicBertConfig(**keys)
        if experts:
            model = NomicBertMoe(built)
            return Released("nomic-bert-moe", model.model)
        return Released("nomic-bert", NomicBertModel(built))
    if kind == "xlm-roberta" and config.get("position_embedding_type") == "rotary":
        return TaskAdapters(config)
    if kind == "jina_embeddings_v5":
        return AutoModel.from_config(native({**config, "model_type": "eurobert"}, folder))
    if kind == "new":
        model = GteModel(gte(config))
        ntk(model, config)
        return Released("gte", model)
    return AutoModel.from_config(native(config, folder))


def native(config, folder):
    """The configuration as transformers' own class reads it; a release's own code is not run, and all is in f32, also
    the numbers that states are multiplied with."""
    from transformers import AutoConfig
    own = {key: value for key, value in config.items() if key not in ("auto_map", "torch_dtype", "dtype")}
    (folder / "config.json").write_text(json.dumps(own))
    return AutoConfig.from_pretrained(folder, attn_implementation="eager")


def classifier(config, folder):
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
    if config["model_type"] == "new":
        return ReleasedClassifier(config)
    decodes = "ForCausalLM" in config["architectures"][0]
    cls = AutoModelForCausalLM if decodes else AutoModelForSequenceClassification
    return cls.from_config(native(config, folder))


def stored(model):
    """What a model's file has the values of, each once."""
    scalars = [buffer for name, buffer in model.named_buffers() if name.endswith("layer_scalar")]
    return list(dict.fromkeys(list(model.parameters()) + scalars))


def fill(model, folder):
    """Gives a model the weights of its saved tensors' names, and returns these with their shapes."""
    parameters = stored(model)
    start = 0
    # Each value is its own number, by which the file says where it went.
    for parameter in parameters:
        parameter.data = torch.arange(start, start + parameter.numel(), dtype=torch.float32).reshape(parameter.shape)
        start += parameter.numel()
    assert start < 1 << 24, "too large for numbers in f32"
    model.save_pretrained(folder)
    flat = torch.full((start,), torch.nan)
    shapes = {}
    for name, numbers in load_file(folder / "model.safetensors").items():
        if numbers.dtype != torch.float32:
            continue
        shapes[name] = list(numbers.shape)
        flat[numbers.flatten().long()] = weights(name, shapes[name]).flatten()
    start = 0
    for parameter in parameters:
        parameter.data = flat[start:start + parameter.numel()].reshape(parameter.shape).clone()
        start += parameter.numel()
    unsaved = [name for name, parameter in model.named_parameters() if parameter.isnan().any()]
    assert not unsaved or all("pooler" in name for name in unsaved), unsaved
    return shapes


def backward(rows):
    """Makes the gradients of vectors of norm 1, or of scores, in a direction of each text's or pair's own."""
    rows = torch.cat([row.flatten() for row in rows])
    (rows * torch.from_numpy(noise("direction", len(rows))).to(rows.dtype)).sum().backward()


def gradient(name, values):
    """Of a gradient its norm, and what it is in a direction that the tensor's name gives."""
    values = values.detach().double().flatten()
    direction = torch.from_numpy(noise(f"gradient of {name}", len(values)))
    return rounded([values.norm().item(), (values @ direction).item()])


def gradients(model, folder):
    """A model's gradients under the names by which it is saved, but for those of what it made no use of; its weights are
    then gone."""
    for parameter in stored(model):
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    model.save_pretrained(folder)
    found = load_file(folder / "model.safetensors")
    return {name: gradient(name, values) for name, values in found.items() if values.any()}


def pooled(states, mode):
    # NV-Embed's states come from its head already.
    mode = "mean" if mode == "latent" else mode
    return {"mean": states.mean(1), "cls": states[:, 0], "lasttoken": states[:, -1]}[mode]


ACTIVATIONS = {"torch.nn.modules.activation.Tanh": torch.tanh, "torch.nn.modules.linear.Identity": lambda x: x}


def layout(published):
    """The files of sentence-transformers' layout beside config.json."""
    kind = "sentence_transformers.models."
    if published.get("modules"):
        # A model's own code does all.
        return {"modules.json": [{"idx": number, "name": str(number), "path": "", "type": name}
                                 for number, name in enumerate(published["modules"])]}
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    flag = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token",
            "lasttoken": "pooling_mode_lasttoken",
            "latent": "pooling_mode_mean_tokens"}[published["pooling"]]
    width = 32
    files = {"sentence_bert_config.json": {"max_seq_length": MAX_LENGTH, "do_lower_case": False},
             "1_Pooling/config.json": {"word_embedding_dimension": width, flag: True}}
    for number, dense in enumerate(published.get("dense", [])):
        modules.append((f"{number + 2}_Dense", "Dense"))
        out = 16 * max(1, dense["out_features"] // dense["in_features"] * 2)
        files[f"{number + 2}_Dense/config.json"] = {
            "in_features": width, "out_features": out, "bias": dense["bias"],
            "activation_function": dense["activation_function"]}
        width = out
    if published["normalize"]:
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
    files["modules.json"] = [{"idx": number, "name": str(number), "path": path, "type": kind + name}
                             for number, (path, name) in enumerate(modules)]
    if published.get("transformer"):
        files["modules.json"][0]["type"] = published["transformer"]
    return files


def tokenizer_of(published):
    """The copy's tokenizer, by the name of its file: special tokens as the family has them, letters for the rest."""
    name = published["tokenizer"]
    if name == "chat":
        tokenizer = letters(None, CHAT)
        tokenizer.add_special_tokens({"additional_special_tokens": CHAT[3:7]})
        tokenizer.model_max_length = 900
        return tokenizer
    template, special = {"bert": BERT, "plain": PLAIN, "roberta": ROBERTA, "decoder": ROBERTA,
                         "bos": BOS}[name]
    tokenizer = letters(template, special)
    tokenizer.padding_side = "left" if name == "decoder" else "right"
    return tokenizer


def rounded(values):
    return [float(f"{value:.7g}") for value in values]


def embedder(published, config, tokenizer, folder):
    """Tensors by file, files of the layout, vectors of the texts, those by each task, and gradients by file."""
    model = backbone(config, folder).eval()
    tensors = {"model.safetensors": fill(model, folder)}
    files = layout(published)
    dense = []
    for name in sorted(name for name in files if "_Dense" in name):
        spec = files[name]
        shapes = {"linear.weight": [spec["out_features"], spec["in_features"]]}
        if spec["bias"]:
            shapes["linear.bias"] = [spec["out_features"]]
        tensors[name.replace("config.json", "model.safetensors")] = shapes
        read = {key: weights(key, shape).requires_grad_() for key, shape in shapes.items()}
        dense.append((read, ACTIVATIONS[spec["activation_function"]]))

    def vector_of(text):
        # What a model's own code adds is within the limit, too.
        room = MAX_LENGTH - 1 if config.get("add_eos") else MAX_LENGTH
        tokens = tokenizer(text, return_tensors="pt", truncation=True, max_length=room)
        tokens.pop("token_type_ids", None)
        if config.get("add_eos"):
            end = torch.tensor([[tokenizer.sep_token_id]])
            tokens["input_ids"] = torch.cat([tokens["input_ids"], end], 1)
            tokens["attention_mask"] = torch.ones_like(tokens["input_ids"])
        states = model(**tokens)
        states = getattr(states, "last_hidden_state", states)
        vector = pooled(states, published["pooling"])
        for read, activation in dense:
            vector = activation(F.linear(vector, read["linear.weight"], read.get("linear.bias")))
        return vector[0]

    def vectors_of(texts):
        with torch.no_grad():
            found = [vector_of(text) for text in texts]
        if published["normalize"]:
            found = [F.normalize(vector, dim=-1) for vector in found]
        return [rounded(vector.tolist()) for vector in found]

    backward([F.normalize(vector_of(text), dim=-1) for text in TEXTS])
    vectors = vectors_of(TEXTS)
    by_task = {}
    for model.task in getattr(model, "tasks", []):
        by_task[model.task] = vectors_of(TEXTS)
    if published.get("prompts"):
        files["config_sentence_transformers.json"] = {"prompts": published["prompts"]}
    found = [gradients(model, folder)] + [{key: gradient(key, value.grad) for key, value in read.items()} for read, _ in dense]
    return tensors, files, vectors, by_task, dict(zip(tensors, found))


def reranker(published, config, tokenizer, folder):
    model = classifier(config, folder).eval()
    tensors = {"model.safetensors": fill(model, folder)}
    if published["tokenizer"] == "chat":
        scores = [yes_or_no(model, tokenizer, query, text) for query, text in PAIRS]
    else:
        scores = []
        for query, text in PAIRS:
            # As a list: an empty text is one of a pair, too.
            tokens = tokenizer([[query, text]], return_tensors="pt", truncation=True, max_length=MAX_LENGTH)
            scores.append(model(**tokens).logits[0, 0])
    backward(scores)
    return tensors, {}, rounded(score.item() for score in scores), {}, {"model.safetensors": gradients(model, folder)}


def table(published, config, tokenizer, folder):
    """Static embeddings, as model2vec or sentence-transformers computes them."""
    rows = [len(tokenizer), 32]
    name, file = ("embeddings", "model.safetensors")
    files = {}
    if config.get("model_type") != "model2vec":
        name, file = "embedding.weight", "0_StaticEmbedding/model.safetensors"
        files["modules.json"] = [{"idx": 0, "name": "0", "path": "0_StaticEmbedding",
                                  "type": "sentence_transformers.models.StaticEmbedding"}]
    values, vectors, normed = weights(name, rows).requires_grad_(), [], []
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if config.get("model_type") == "model2vec":
            ids = [token for token in ids if token != tokenizer.unk_token_id]
        vector = values[ids].mean(0)
        normed.append(F.normalize(vector, dim=-1))
        vectors.append(rounded((normed[-1] if published["normalize"] else vector).tolist()))
    backward(normed)
    return {file: {name: rows}}, files, vectors, {}, {file: {name: gradient(name, values.grad)}}


# Of tests/fixtures/families.
FAMILIES = ["embedding-gemma2", "gemma", "llama", "llama-yarn", "xlm-roberta-xl"]


def of_family(name):
    """What a published model's file says, of a family's tiny one."""
    config = json.loads((FIXTURES / "families" / name / "config.json").read_text())
    # A token of texts would get no gradient.
    config["pad_token_id"] = 1
    return {"model": name, "kind": "embedder", "tokenizer": "roberta", "pooling": "mean", "normalize": True, "config": config}


def main():
    folder = FIXTURES / "models"
    (folder / "tokenizers").mkdir(parents=True, exist_ok=True)
    only = [name for name in sys.argv[1:] if name != "gradients"]
    models = {path.stem: json.loads(path.read_text()) for path in sorted(PUBLISHED.glob("*.json"))}
    models |= {name: of_family(name) for name in FAMILIES}
    for stem, published in models.items():
        if only and stem not in only:
            continue
        path = folder / f"{stem}.json"
        tokenizer = tokenizer_of(published)
        tokenizer.backend_tokenizer.save(str(folder / "tokenizers" / f"{published['tokenizer']}.json"))
        config, changed = (published["config"], {}) if stem in FAMILIES else small(published["config"], tokenizer)
        kind = published["kind"]
        make = {"embedder": embedder, "reranker": reranker, "table": table}[kind]
        with tempfile.TemporaryDirectory() as temporary:
            tensors, files, expected, by_task, found = make(published, config, tokenizer, Path(temporary))
        files["tokenizer_config.json"] = {
            "pad_token": tokenizer.pad_token, "cls_token": tokenizer.cls_token, "sep_token": tokenizer.sep_token,
            "unk_token": tokenizer.unk_token, "eos_token": tokenizer.sep_token,
            "padding_side": tokenizer.padding_side,
            "model_max_length": tokenizer.model_max_length,
            "model_input_names": tokenizer.model_input_names, "tokenizer_class": "PreTrainedTokenizerFast"}
        fixture = {"model": published["model"], "kind": kind, "published": changed, "config": config,
                   "tokenizer": published["tokenizer"], "files": files, "tensors": tensors, "expected": expected}
        if by_task:
            fixture["tasks"] = by_task
        if "gradients" in sys.argv[1:] and path.exists():
            fixture = json.loads(path.read_text())
        if found:
            fixture["gradients"] = found
        lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in fixture.items()]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(f"{stem}: {sum(len(shapes) for shapes in tensors.values())} tensors", flush=True)
    (folder / "texts.json").write_text(json.dumps({"texts": TEXTS, "pairs": PAIRS}, indent=0) + "\n")


if __name__ == "__main__":
    main()
