"""What is wrong is an exception that Python's people expect, which says what and where."""

import numpy as np
import pytest
from samples import REPOSITORY

import kiln_embed
from kiln_embed import Embedder, Index, KilnError, Reranker, evaluate, quantize, run, train


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["a", None], r"sentences\[1\] is NoneType, not str"),
        ([b"a"], r"sentences\[0\] is bytes, not str"),
        (["a", "b", 3], r"sentences\[2\] is int, not str"),
        ([float("nan")], r"sentences\[0\] is float, not str"),
        ([["a"]], r"sentences\[0\] is list, not str"),
        (None, "sentences must be str, or several .*, not NoneType"),
        (b"bytes", "not bytes"),
        (bytearray(b"bytes"), "not bytearray"),
        (7, "not int"),
        ({"text": "a"}, "not dict"),
        (np.array([1.0]), r"sentences\[0\] is float64, not str"),
    ],
)
def test_what_is_no_text_is_named(embedder, texts, said):
    with pytest.raises(TypeError, match=said):
        embedder.encode(texts)
    with pytest.raises(TypeError, match=said):
        embedder.encode_arrow(texts)


def test_an_iterables_own_exception_is_raised(embedder):
    def texts():
        yield "a"
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        embedder.encode(texts())


def test_half_a_surrogate_pair_is_no_character(embedder):
    with pytest.raises(ValueError, match=r"sentences\[1\] has a surrogate"):
        embedder.encode(["fine", "\ud83d alone"])
    assert embedder.encode("\U0001f6a2").shape == (384,)


@pytest.mark.parametrize("text", ["\0", "\u202e\x1b[31m", "a boat " * 200_000, " ", "\U0010ffff" * 500])
def test_odd_texts_have_vectors(embedder, text):
    assert np.isfinite(embedder.encode(text)).all()


def test_a_text_without_an_end_says_what_to_do(embedder):
    with pytest.raises(ValueError, match="break it up"):
        embedder.encode("a" * 1_000_000)


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ({"prompt_name": "nonsense"}, ValueError, "no prompt \"nonsense\""),
        ({"truncate_dim": 385}, ValueError, "385 dimensions asked of a model that gives 384"),
        ({"truncate_dim": 0}, ValueError, "truncate_dim must be at least 1"),
        ({"truncate_dim": -1}, ValueError, "truncate_dim must be at least 1"),
        ({"truncate_dim": 2**70}, ValueError, "truncate_dim"),
        ({"truncate_dim": "8"}, TypeError, "truncate_dim must be int or None, not str"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"batch_tokens": 1.5}, TypeError, "batch_tokens must be int or None, not float"),
        ({"prompt": b"x"}, TypeError, "prompt"),
    ],
)
def test_arguments_without_sense(embedder, arguments, kind, said):
    with pytest.raises(kind, match=said):
        embedder.encode(["a"], **arguments)


def test_a_model_that_is_not_there():
    with pytest.raises(FileNotFoundError, match="no/such/folder/anywhere.*kiln-mini"):
        Embedder("no/such/folder/anywhere")
    with pytest.raises(TypeError):
        Embedder(None)
    with pytest.raises(FileNotFoundError):
        Reranker("no/such/folder/anywhere")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"device": "gpu"}, "device \"gpu\" is none of auto, cpu"),
        ({"weights": "int3"}, "int3"),
        ({"pooling": "mode"}, "mode"),
        ({"attention": "sideways"}, "neither causal nor bidirectional"),
        ({"max_length": 0}, "max_length must be at least 1"),
        ({"truncate_dim": 1000}, "truncate_dim 1000 is more than the 384 dimensions"),
    ],
)
def test_settings_without_sense(settings, said):
    with pytest.raises(ValueError, match=said):
        Embedder(**settings)


def test_a_device_that_is_not_there():
    with pytest.raises((KilnError, ValueError), match="(?i)cuda"):
        Embedder(device="cuda:7")


def test_a_damaged_model_is_refused(tmp_path):
    whole = (REPOSITORY / "tests/compat/v1/int8.kiln").read_bytes()
    for name, data in {
        "short": whole[:5000],
        "flipped": whole[:9000] + bytes([whole[9000] ^ 1]) + whole[9001:],
        "empty": b"",
        "other": b"PK\3\4" * 100,
    }.items():
        path = tmp_path / f"{name}.kiln"
        path.write_bytes(data)
        with pytest.raises((KilnError, ValueError, OSError)) as caught:
            Embedder(path, device="cpu")
        assert "\n" not in str(caught.value) and name in str(caught.value)
    empty = tmp_path / "folder"
    empty.mkdir()
    with pytest.raises((FileNotFoundError, KilnError), match="folder"):
        Embedder(empty)


def test_an_embedder_is_no_reranker(tmp_path):
    with pytest.raises((KilnError, ValueError, FileNotFoundError)) as caught:
        Reranker(REPOSITORY / "tests/compat/v1/model", device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("vectors", "kind", "said"),
    [
        ([["a", "b"]], TypeError, "must be numbers"),
        (np.array([[1 + 2j, 0]]), TypeError, "must be numbers, not an array of complex"),
        (np.array([[True, False]]), TypeError, "must be numbers"),
        (np.array([[None, 1]], dtype=object), TypeError, "must be numbers"),
        ([[1.0, 2.0], [1.0]], (TypeError, ValueError), "vectors"),
        (np.ones((2, 2, 2)), ValueError, r"shape \(2, 2, 2\)"),
        (1.0, ValueError, "shape"),
        (np.ones((3, 0)), ValueError, "no dimensions"),
        ([[1.0, 2.0, 3.0]], ValueError, r"vectors\[0\] has 3 dimensions, the index has 2"),
        ([[1.0, 0.0], [np.nan, 1.0]], ValueError, r"vectors\[1\] has numbers that are not finite"),
        ([[1.0, 0.0], [0.0, 0.0]], ValueError, r"vectors\[1\] has length 0"),
        ([[1e300, 0.0]], ValueError, r"vectors\[0\] has numbers that are not finite"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_vectors_that_no_index_takes(vectors, kind, said):
    index = Index(2)
    index.add([[1, 0]])
    with pytest.raises(kind, match=said):
        index.add(vectors)
    assert len(index) == 1  # All or none.
    with pytest.raises(kind):
        index.search(vectors)


def test_indexes_that_cannot_be(tmp_path):
    with pytest.raises(ValueError, match="dimensions must be at least 1"):
        Index(0)
    with pytest.raises(ValueError, match="1 to 65536 dimensions"):
        Index(100_000)
    with pytest.raises(ValueError, match="known are f32, int8, binary"):
        Index(2, "int4")
    with pytest.raises(FileNotFoundError):
        Index.load(tmp_path / "nothing")
    (tmp_path / "other").write_bytes(b"KIDX" + bytes(100))
    with pytest.raises(KilnError, match="other"):
        Index.load(tmp_path / "other")
    index = Index.from_vectors(np.eye(3))
    with pytest.raises(IndexError, match="no row 3 in an index of 3 rows"):
        index.vector(3)
    with pytest.raises(IndexError):
        index.swap_remove(-4)
    with pytest.raises(ValueError, match="k must be at least 1"):
        index.search([1, 0, 0], k=0)
    index.save(tmp_path / "index")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        index.save(tmp_path / "index")
    index.save(tmp_path / "index", overwrite=True)
    with pytest.raises(OSError):
        index.save(tmp_path / "no/folder/here")


def test_a_closed_index_says_so():
    index = Index.from_vectors(np.eye(3))
    with index as same:
        assert same is index and len(same) == 3
    assert index.closed and repr(index) == "Index(closed)"
    index.close()
    for use in [
        lambda: index.search([1, 0, 0]),
        lambda: index.add([1, 0, 0]),
        lambda: len(index),
        lambda: index.dimensions,
        lambda: index.vector(0),
        lambda: index.save("nowhere"),
        index.__enter__,
    ]:
        with pytest.raises(ValueError, match="the index is closed"):
            use()


def test_commands_say_what_is_wrong(tmp_path):
    with pytest.raises((KilnError, FileNotFoundError), match="did you mean the recipe nv-embed-small"):
        train("nv-embed-smal", tmp_path / "run")
    with pytest.raises((KilnError, ValueError), match="sedd"):
        train("nv-embed-small", tmp_path / "run", sedd=3)
    with pytest.raises(TypeError, match="seed is object, which no recipe holds"):
        train("nv-embed-small", tmp_path / "run", seed=object())
    with pytest.raises(TypeError, match="on_step must be callable"):
        train("nv-embed-small", tmp_path / "run", on_step=3)
    with pytest.raises(ValueError, match='resume must be True, False or "auto", not .no.'):
        train("nv-embed-small", tmp_path / "run", resume="no")
    with pytest.raises(ValueError, match="int5"):
        quantize("kiln-mini", tmp_path / "out", "int5")
    with pytest.raises(KilnError, match="quantized already"):
        quantize("kiln-mini", tmp_path / "out")
    with pytest.raises(ValueError, match="--flavour"):
        quantize("kiln-mini", tmp_path / "out", flavour="sweet")
    with pytest.raises(ValueError):
        evaluate("kiln-mini", "data.jsonl", "nonsense")
    with pytest.raises(ValueError, match="unrecognized subcommand"):
        run("nonsense")
    assert not list(tmp_path.iterdir())


def test_names_that_the_package_has_not():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        kiln_embed.Nonsense  # noqa: B018
    assert set(kiln_embed.__all__) <= set(dir(kiln_embed))
    for name in kiln_embed.__all__:
        assert getattr(kiln_embed, name) is not None
