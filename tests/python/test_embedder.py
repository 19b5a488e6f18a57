"""Embedder: vectors are the command's, arguments are sentence-transformers'."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from samples import REPOSITORY, SENTENCES, many

from kiln_embed import Embedder


def test_the_first_vector_needs_no_network(embedder):
    vectors = embedder.encode(SENTENCES)
    assert vectors.shape == (7, 384) and vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert embedder.get_sentence_embedding_dimension() == 384 == embedder.get_embedding_dimension()
    assert embedder.max_seq_length == 256 and embedder.device == "cpu"
    assert repr(embedder) == "Embedder('kiln-mini', device='cpu', dimensions=384, max_seq_length=256)"


def test_meaning_is_in_them(embedder):
    query = embedder.encode_query("how do boats travel on water")
    documents = embedder.encode_document(["a ship sails across the sea", "the recipe needs two eggs"])
    near, far = embedder.similarity(query, documents)[0]
    assert near > far + 0.1


def write_adapter(folder: Path) -> None:
    """A LoRA adapter of the tiny model, as PEFT writes it."""
    folder.mkdir()
    config = {
        "peft_type": "LORA", "base_model_name_or_path": "someone/else", "r": 2, "lora_alpha": 4, "lora_dropout": 0.0
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors, data = {}, b""
    for name, shape in {"lora_A": (2, 32), "lora_B": (32, 2)}.items():
        values = np.sin(np.arange(64, dtype="<f4")).reshape(shape).tobytes()
        tensors[f"base_model.model.layers.0.mlp.down_proj.{name}.weight"] = {
            "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]
        }  # fmt: skip
        data += values
    header = json.dumps(tensors).encode()
    header += b" " * (-len(header) % 8)
    (folder / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)


def test_an_adapter_is_taken_by_name(kiln, tmp_path, prompted):
    model = tmp_path / "model"
    shutil.copytree(prompted.model, model)
    write_adapter(model / "passage")
    adapted = Embedder(f"{model}#passage", device="cpu")
    vectors = adapted.encode(SENTENCES[:5])
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES[:5]))
    kiln("embed", "--device", "cpu", "--quiet", "-m", model, "--adapter", "passage", "-i", tmp_path / "texts.jsonl",
         "-o", tmp_path / "vectors.npy")  # fmt: skip
    assert np.array_equal(vectors, np.load(tmp_path / "vectors.npy"))
    assert not np.allclose(vectors, prompted.encode(SENTENCES[:5]))
    with pytest.raises(FileNotFoundError, match="no/such/folder/anywhere#passage"):
        Embedder("no/such/folder/anywhere#passage")


@pytest.mark.parametrize("arguments", [[], ["--dimensions", "100"], ["--weights", "f32"]])
def test_vectors_are_the_commands_bit_for_bit(kiln, tmp_path, arguments):
    texts = many(300 if arguments else 4200)  # More than are sorted together.
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    model = REPOSITORY / "web-demo/kiln-mini.kiln"
    kiln("embed", "--device", "cpu", "--quiet", "-m", model, "-i", tmp_path / "texts.jsonl",
         "-o", tmp_path / "vectors.npy", *arguments)  # fmt: skip
    options = dict(zip(arguments[::2], arguments[1::2]))
    embedder = Embedder(device="cpu", weights=options.get("--weights"))
    ours = embedder.encode(texts, truncate_dim=int(options.get("--dimensions", 384)))
    assert np.array_equal(ours, np.load(tmp_path / "vectors.npy"))


def test_prompts_are_the_commands(kiln, tmp_path, prompted):
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES[:5]))
    assert prompted.prompts == {"query": "find: "} and prompted.default_prompt_name is None

    def command(*arguments):
        output = tmp_path / f"{len(list(tmp_path.iterdir()))}.npy"
        kiln("embed", "--device", "cpu", "--quiet", "-m", prompted.model, "-i", tmp_path / "texts.jsonl",
             "-o", output, *arguments)  # fmt: skip
        return np.load(output)

    texts = SENTENCES[:5]
    named = command("--prompt-name", "query")
    assert np.array_equal(prompted.encode(texts, "query"), named)
    assert np.array_equal(prompted.encode_query(texts), named)
    assert np.array_equal(prompted.encode(texts, prompt="find: "), named)
    assert np.array_equal(prompted.encode(texts, prompt_name="query", prompt="other: "), command("--prompt", "other: "))
    plain = command()
    assert np.array_equal(prompted.encode(texts), plain) and not np.array_equal(plain, named)
    assert np.array_equal(prompted.encode_document(texts), plain)
    assert np.array_equal(prompted.encode_query(texts, prompt=""), plain)
    # By position, and by sentence-transformers 6's name.
    assert np.array_equal(prompted.encode_query(texts, None, ""), plain)
    assert np.array_equal(prompted.encode(inputs=texts, prompt_name="query"), named)
    assert np.array_equal(prompted.encode_query(inputs=texts), named)
    with pytest.raises(TypeError, match="give one of them"):
        prompted.encode(texts, inputs=texts)


def test_a_default_of_queries_is_none_of_documents(prompted, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(prompted.model, folder)
    file = folder / "config_sentence_transformers.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "default_prompt_name": "query"}))
    (folder / "kiln.json").unlink(missing_ok=True)
    model, texts = Embedder(folder, device="cpu"), SENTENCES[:3]
    assert np.array_equal(model.encode(texts), model.encode_query(texts))
    assert np.array_equal(model.encode_document(texts), model.encode(texts, prompt=""))
    assert not np.array_equal(model.encode_document(texts), model.encode_query(texts))


@pytest.mark.skipif("KILN_MINILM" not in os.environ, reason="all-MiniLM-L6-v2 is not here (KILN_MINILM)")
def test_vectors_are_those_of_sentence_transformers():
    fixtures = REPOSITORY / "tests/fixtures/minilm"
    texts = json.loads((fixtures / "texts.json").read_text())
    # safetensors: a length, a header in JSON, and the numbers.
    data = (fixtures / "vectors.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    name = next(name for name, one in header.items() if name != "__metadata__" and one["shape"] == [len(texts), 384])
    begin, end = header[name]["data_offsets"]
    theirs = np.frombuffer(data[8 + size :][begin:end], dtype=np.float32).reshape(-1, 384)
    ours = Embedder(os.environ["KILN_MINILM"], device="cpu").encode(texts)
    cosines = (ours * theirs).sum(axis=1) / np.linalg.norm(theirs, axis=1)
    assert cosines.min() > 0.9999


def test_one_text_is_one_vector(embedder):
    one = embedder.encode("a boat")
    assert one.shape == (384,)
    assert np.array_equal(one, embedder.encode(["a boat"])[0])


def test_texts_come_in_any_iterable(embedder):
    expected = embedder.encode(SENTENCES)
    for texts in [tuple(SENTENCES), iter(SENTENCES), (text for text in SENTENCES), np.array(SENTENCES), dict.fromkeys(
        SENTENCES
    ).keys()]:  # fmt: skip
        assert np.array_equal(embedder.encode(texts), expected)


def test_no_texts_are_no_rows(embedder):
    assert embedder.encode([]).shape == (0, 384)
    assert embedder.encode([], truncate_dim=8).shape == (0, 8)
    assert embedder.encode([], convert_to_numpy=False) == []
    assert len(embedder.encode_arrow([])) == 0


def test_what_stands_beside_a_text_changes_nothing(embedder):
    texts = many(60)
    together = embedder.encode(texts)
    for batch in [1, 7, 64, 10_000]:
        assert np.array_equal(embedder.encode(texts, batch_size=batch, batch_tokens=batch), together)
    assert np.array_equal(np.stack([embedder.encode(text) for text in texts]), together)


def test_shorter_vectors_are_the_first_dimensions(embedder):
    short = embedder.encode(SENTENCES, truncate_dim=64)
    assert short.shape == (7, 64)
    full = embedder.encode(SENTENCES)[:, :64]
    assert np.allclose(short, full / np.linalg.norm(full, axis=1, keepdims=True), atol=1e-5)
    truncated = Embedder(device="cpu", truncate_dim=64)
    assert truncated.get_sentence_embedding_dimension() == 64
    assert np.array_equal(truncated.encode(SENTENCES), short)


def test_normalising_is_the_models_or_asked_for(tmp_path):
    # The same model without its last module, and without the manifest that has its sums.
    shutil.copytree(REPOSITORY / "tests/compat/v1/model", tmp_path, ignore=lambda *_: ["kiln.json"], dirs_exist_ok=True)
    modules = json.loads((tmp_path / "modules.json").read_text())
    (tmp_path / "modules.json").write_text(json.dumps(modules[:2]))
    embedder = Embedder(tmp_path, device="cpu")
    texts = SENTENCES[:5]
    vectors = embedder.encode(texts)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    assert not np.allclose(norms, 1)
    assert np.allclose(embedder.encode(texts, normalize_embeddings=True), vectors / norms, atol=1e-5)


def test_vectors_are_numpys_own_memory(embedder):
    vectors = embedder.encode(SENTENCES)
    assert vectors.flags.c_contiguous and vectors.flags.writeable
    vectors[0] = 0  # and nobody else's
    assert np.abs(embedder.encode(SENTENCES)[0]).sum() > 0
    assert isinstance(embedder.encode(SENTENCES, convert_to_numpy=False)[0][0], float)


def test_similarity_is_the_cosine(embedder):
    a, b = embedder.encode(SENTENCES[:3]) * 5, embedder.encode(SENTENCES[3:6])
    both = embedder.similarity(a, b)
    assert both.shape == (3, 3) and both.dtype == np.float32
    assert np.allclose(both[1, 2], np.dot(a[1], b[2]) / np.linalg.norm(a[1]) / np.linalg.norm(b[2]), atol=1e-6)
    assert np.allclose(embedder.similarity_pairwise(a, b), np.diag(both), atol=1e-6)
    assert embedder.similarity(a[0], np.zeros(384))[0, 0] == 0
    with pytest.raises(ValueError, match="no pairs"):
        embedder.similarity_pairwise(a, b[:2])


def test_tokens_are_the_models(embedder, prompted):
    tokens = embedder.tokenize(["a boat on the river", "a"])
    ids, mask = tokens["input_ids"], tokens["attention_mask"]
    assert ids.shape == mask.shape and ids.dtype == np.int64
    lengths = mask.sum(axis=1)
    assert lengths[0] > lengths[1] > 0 and ids[1, lengths[1] :].tolist() == [0] * (ids.shape[1] - lengths[1])
    prompt = prompted.tokenize("a boat", "query")["input_ids"].shape[1]
    assert prompt > prompted.tokenize("a boat")["input_ids"].shape[1]
    assert embedder.tokenize([])["input_ids"].shape == (0, 0)
    assert embedder.tokenize("word " * 5000)["input_ids"].shape == (1, 256)


def test_an_explanation_says_where_the_weight_lies(embedder):
    text = "Größe of the boat"
    why = embedder.explain(text)
    assert len(why.tokens) == len(why.offsets) == len(why.token_weights)
    assert np.isclose(why.token_weights.sum(), 1, atol=1e-4)
    parts = [text[begin:end].strip() for begin, end in why.offsets]
    assert "boat" in parts and parts[-1] in {"boat", ""}
    assert "boat" in str(why)
    with pytest.raises(TypeError, match="text must be str, not list"):
        embedder.explain([text])


def test_settings_change_the_model():
    model = REPOSITORY / "tests/compat/v1/model"
    vectors = {
        json.dumps(settings): Embedder(model, device="cpu", **settings).encode(SENTENCES[0]).tolist()
        for settings in [{}, {"pooling": "cls"}, {"max_length": 4}, {"weights": "int8"}]
    }
    assert len({tuple(vector) for vector in vectors.values()}) == 4


def test_a_subclass_and_paths_work(tmp_path):
    class Mine(Embedder):
        pass

    model = tmp_path / "folder with ä space.kiln"
    model.write_bytes((REPOSITORY / "tests/compat/v1/int8.kiln").read_bytes())
    assert Mine(model, device="cpu").encode("a").shape == (32,)
    assert isinstance(Path(Mine(str(model), device="cpu").model), Path)
