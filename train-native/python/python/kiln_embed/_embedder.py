"""`Embedder`: texts in, vectors out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, overload

from kiln_embed import _native

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Texts = Union[str, Iterable[str], "SupportsArrow"]

    from typing import Protocol

    class SupportsArrow(Protocol):
        """An Arrow array of strings, such as a column of pyarrow, polars or pandas."""

        def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


DEFAULT_MODEL = "kiln-mini"


def find_model(model: str | os.PathLike[str]) -> str:
    """The file of kiln-mini, which is inside this package, or what was named."""
    name = os.fspath(model)
    if not isinstance(name, str):
        raise TypeError(f"model must be str or a path, not {type(model).__name__}")
    if name != DEFAULT_MODEL:
        return name
    return str(Path(__file__).with_name("kiln-mini.kiln"))


def count(value: Any, name: str) -> int | None:
    """A number of things, at least one of them, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be int or None, not {type(value).__name__}")
    number = value.__index__()
    if not 1 <= number < 2**31:
        raise ValueError(f"{name} must be at least 1, not {number}")
    return int(number)


@dataclass(frozen=True)
class Explanation:
    """Why a text got its vector.

    What a pooling head does not have is None: mean pooling weighs tokens, latent attention has latents, trained
    poolings over layers have layers.
    """

    text: str
    #: The tokens, special ones included.
    tokens: list[str]
    #: Where each token stands in the text, in characters; empty ranges for special and prompt tokens.
    offsets: list[tuple[int, int]]
    #: Weight of each token in the vector.
    token_weights: NDArray[np.float32] | None
    #: Attention between each token and each latent: `[heads, tokens, latents]`.
    latents: NDArray[np.float32] | None
    #: Weight of each layer.
    layers: NDArray[np.float32] | None

    def __str__(self) -> str:
        if self.token_weights is None:
            return " ".join(self.tokens)
        pairs = zip(self.tokens, self.token_weights)
        return " ".join(f"{token}:{weight:.3f}" for token, weight in pairs)


class Embedder:
    """A text-embedding model.

    Args:
        model: `kiln-mini`, which is inside this package; a folder as sentence-transformers or Kiln writes them; a
            `.kiln` file; or a Hub id (`owner/name[@revision]`), which is downloaded into huggingface_hub's cache.
            `MODEL#NAME` takes one of a model's adapters by name.
        device: `auto`, `cpu`, `vulkan[:n]` or `cuda[:n]`. The wheels on PyPI have the CPU.
        weights: Precision to run the weights in: None (that of the file), `f32`, `bf16`, `int8`, `int4`,
            `fp8-e4m3` or `fp8-e5m2`.
        truncate_dim: Keep only so many dimensions of each vector (Matryoshka), unless a call says otherwise.
        max_length: Truncate texts to so many tokens; None: the model's own limit.
        pooling: Another pooling head without parameters: `cls`, `last_token`, `mean`, `weighted_mean`, `anchor`.
        attention: Another attention mask: `causal` or `bidirectional`.
        show_progress_bar: Say on standard error how far a download is.

    Raises:
        FileNotFoundError: There is no such model.
        ValueError: A setting has no such value, or the model does not allow it.
        KilnError: The model's files are damaged, or of a kind that Kiln does not run.

    One model may be used from many threads, is pickled by its name and settings, and works in processes that were
    forked after it was loaded. A text gets the same bits whatever stands beside it in a call (on the CPU).
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULT_MODEL,
        *,
        device: str = "auto",
        weights: str | None = None,
        truncate_dim: int | None = None,
        max_length: int | None = None,
        pooling: str | None = None,
        attention: str | None = None,
        show_progress_bar: bool = False,
    ) -> None:
        self._settings: dict[str, Any] = {
            "model": os.fspath(model),
            "device": device,
            "weights": weights,
            "truncate_dim": count(truncate_dim, "truncate_dim"),
            "max_length": count(max_length, "max_length"),
            "pooling": pooling,
            "attention": attention,
        }
        self._native = _native.TextModel(
            find_model(model),
            device,
            weights,
            pooling,
            attention,
            self._settings["max_length"],
            bool(show_progress_bar),
        )
        if truncate_dim is not None and truncate_dim > self._native.dimensions:
            raise ValueError(
                f"truncate_dim {truncate_dim} is more than the {self._native.dimensions} dimensions of the model"
            )

    # ------------------------------------------------------------------------------------ what it is

    @property
    def model(self) -> str:
        """What was named as the model."""
        return str(self._settings["model"])

    @property
    def device(self) -> str:
        """Where it computes."""
        return self._native.device

    @property
    def max_seq_length(self) -> int:
        """Most tokens of a text; longer texts are cut."""
        return self._native.max_length

    @property
    def prompts(self) -> dict[str, str]:
        """The model's named prompts."""
        return self._native.prompts

    @property
    def default_prompt_name(self) -> str | None:
        """Name of the prompt that is used where none is asked for."""
        return self._native.default_prompt_name

    @property
    def truncate_dim(self) -> int | None:
        """How many dimensions of a vector are kept, if not all."""
        dimensions: int | None = self._settings["truncate_dim"]
        return dimensions

    @property
    def normalizes(self) -> bool:
        """Whether the model itself divides vectors by their norm."""
        return self._native.normalizes

    def fingerprint(self, truncate_dim: int | None = None) -> str:
        """A number for what vectors depend on beside texts and prompt: the model's files, its settings, and how many
        dimensions are kept. `kiln embed` writes the same number into the outputs of many files."""
        return self._native.fingerprint(count(truncate_dim, "truncate_dim") or self.truncate_dim)

    @property
    def similarity_fn_name(self) -> str:
        """How `similarity` compares vectors: "cosine", "dot", "euclidean" or "manhattan", as the model's files say."""
        return self._native.similarity_fn_name

    def get_sentence_embedding_dimension(self) -> int:
        """Width of the vectors."""
        return self.truncate_dim or self._native.dimensions

    #: The same by sentence-transformers' newer name.
    get_embedding_dimension = get_sentence_embedding_dimension

    def get_max_seq_length(self) -> int:
        """Most tokens of a text."""
        return self.max_seq_length

    def __repr__(self) -> str:
        return (
            f"Embedder({self.model!r}, device={self.device!r}, dimensions={self.get_sentence_embedding_dimension()}, "
            f"max_seq_length={self.max_seq_length})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._settings)

    # ------------------------------------------------------------------------------------- vectors

    @overload
    def encode(
        self,
        sentences: Texts | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        *,
        convert_to_numpy: Literal[True] = True,
        convert_to_tensor: Literal[False] = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        batch_tokens: int | None = None,
        inputs: Texts | None = None,
    ) -> NDArray[np.float32]: ...
    @overload
    def encode(
        self,
        sentences: Texts | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        *,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        batch_tokens: int | None = None,
        inputs: Texts | None = None,
    ) -> Any: ...
    def encode(
        self,
        sentences: Texts | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        *,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        batch_tokens: int | None = None,
        inputs: Texts | None = None,
    ) -> Any:
        """Vectors of texts: float32 `[texts, dimensions]`, or `[dimensions]` where one str is given.

        Args:
            sentences: A str, an iterable of str, or an Arrow array of strings (pyarrow, polars, pandas), which is
                read where it is.
            prompt_name: Which of the model's prompts stands before each text; None: its default, if it has one.
            prompt: A prompt as it is; goes before `prompt_name`, and "" is none.
            batch_size: Most texts of a batch on a GPU, whose memory it limits. On the CPU batches are cut so that
                they fit its caches, whatever this says; no vector depends on it.
            show_progress_bar: Say on standard error how far it is.
            convert_to_numpy: A NumPy array, else lists of float.
            convert_to_tensor: A tensor of PyTorch, which has to be installed, in the memory of the array.
            normalize_embeddings: Divide vectors by their norm even where the model does not.
            truncate_dim: Keep only the first dimensions, before vectors are divided by their norm.
            batch_tokens: Most tokens of a batch, padding included; None: what suits the device.
            inputs: `sentences` by the name that sentence-transformers 6 gives them.

        Raises:
            TypeError: Something is no str; the error says which.
            ValueError: The model has no such prompt or not so many dimensions; a str with half of a surrogate pair.
        """
        sentences = _given(sentences, inputs)
        arguments = self._arguments(prompt_name, prompt, batch_size, normalize_embeddings, truncate_dim, batch_tokens)
        one = isinstance(sentences, str)
        texts = [sentences] if one else sentences
        vectors = self._native.embed(texts, "sentences", *arguments, bool(show_progress_bar))
        result = vectors[0] if one else vectors
        if convert_to_tensor:
            import torch

            return torch.from_numpy(result)
        return result if convert_to_numpy else result.tolist()

    def encode_query(
        self,
        sentences: Texts | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        *,
        inputs: Texts | None = None,
        **how: Any,
    ) -> Any:
        """As `encode`, with the model's prompt `query`; where it has none, with none."""
        name, text = self._prompt_of(("query",), prompt_name, prompt)
        return self.encode(_given(sentences, inputs), name, text, batch_size, show_progress_bar, **how)

    def encode_document(
        self,
        sentences: Texts | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        *,
        inputs: Texts | None = None,
        **how: Any,
    ) -> Any:
        """As `encode`, with the first of the model's prompts `document`, `passage` and `corpus`; where it has none,
        with none."""
        name, text = self._prompt_of(("document", "passage", "corpus"), prompt_name, prompt)
        return self.encode(_given(sentences, inputs), name, text, batch_size, show_progress_bar, **how)

    def encode_arrow(
        self,
        sentences: Texts,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        batch_tokens: int | None = None,
    ) -> _native.Vectors:
        """As `encode`, as an Arrow array of fixed-size lists: `pyarrow.array(...)` and the like take it."""
        arguments = self._arguments(prompt_name, prompt, batch_size, normalize_embeddings, truncate_dim, batch_tokens)
        texts = [sentences] if isinstance(sentences, str) else sentences
        return self._native.embed_arrow(texts, "sentences", *arguments, bool(show_progress_bar))

    def _prompt_of(
        self, names: tuple[str, ...], prompt_name: str | None, prompt: str | None
    ) -> tuple[str | None, str | None]:
        if prompt_name is not None or prompt is not None:
            return prompt_name, prompt
        known = self.prompts
        prompt_name = next((name for name in names if name in known), None)
        # The default may be the other side's, unless it is named after this one, as `retrieval.query` is.
        default = re.split(r"[._:-]", self.default_prompt_name or "")[-1]
        return (prompt_name, None) if prompt_name is not None or default in names else (None, "")

    def _arguments(
        self,
        prompt_name: str | None,
        prompt: str | None,
        batch_size: int | None,
        normalize: bool,
        truncate_dim: int | None,
        batch_tokens: int | None,
    ) -> tuple[str | None, str | None, int | None, bool, int | None]:
        batch_size, batch_tokens = count(batch_size, "batch_size"), count(batch_tokens, "batch_tokens")
        if batch_tokens is None and batch_size is not None and self._native.on_gpu:
            batch_tokens = batch_size * self.max_seq_length
        dimensions = count(truncate_dim, "truncate_dim") or self.truncate_dim
        return prompt_name, prompt, dimensions, bool(normalize), batch_tokens

    # -------------------------------------------------------------------------------------- comparison

    def similarity(self, a: ArrayLike, b: ArrayLike) -> NDArray[np.float32]:
        """Every vector of `a` beside every vector of `b`: `[len(a), len(b)]`, higher for more alike (`similarity_fn_name`);
        of distances what is less than 0."""
        import numpy as np

        left, right = self._to_compare(a), self._to_compare(b)
        if self.similarity_fn_name in ("cosine", "dot"):
            return np.asarray(left @ right.T, dtype=np.float32)
        return np.stack([self._less_distance(row[None], right) for row in left])

    def similarity_pairwise(self, a: ArrayLike, b: ArrayLike) -> NDArray[np.float32]:
        """Each vector of `a` beside the one of `b` in the same row, as in `similarity`."""
        import numpy as np

        left, right = self._to_compare(a), self._to_compare(b)
        if left.shape != right.shape:
            raise ValueError(f"{left.shape} and {right.shape} are no pairs of vectors")
        if self.similarity_fn_name in ("cosine", "dot"):
            return np.asarray((left * right).sum(axis=1), dtype=np.float32)
        return self._less_distance(left, right)

    def _to_compare(self, vectors: ArrayLike) -> NDArray[np.float32]:
        return _rows(vectors) if self.similarity_fn_name != "cosine" else _unit(vectors)

    def _less_distance(self, left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
        import numpy as np

        order = 2 if self.similarity_fn_name == "euclidean" else 1
        return np.asarray(-np.linalg.norm(left - right, ord=order, axis=1), dtype=np.float32)

    # ------------------------------------------------------------------------------------ what it sees

    def tokenize(
        self, texts: Texts, prompt_name: str | None = None, prompt: str | None = None
    ) -> dict[str, NDArray[np.int64]]:
        """Token ids as the model sees them, padded with 0: `input_ids` and `attention_mask`, int64 `[texts, tokens]`."""
        import numpy as np

        rows = self._native.tokenize([texts] if isinstance(texts, str) else texts, prompt_name, prompt)
        width = max((len(ids) for ids, _ in rows), default=0)
        input_ids = np.zeros((len(rows), width), dtype=np.int64)
        attention_mask = np.zeros((len(rows), width), dtype=np.int64)
        for row, (ids, _) in enumerate(rows):
            input_ids[row, : len(ids)] = ids
            attention_mask[row, : len(ids)] = 1
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def explain(self, text: str, prompt_name: str | None = None, prompt: str | None = None) -> Explanation:
        """Why a text gets its vector: what the model's pooling head looked at."""
        import numpy as np

        if not isinstance(text, str):
            raise TypeError(f"text must be str, not {type(text).__name__}")
        found = self._native.explain(text, prompt_name, prompt)
        for name in ("token_weights", "latents", "layers"):
            if found[name] is not None:
                found[name] = np.asarray(found[name], dtype=np.float32)
        return Explanation(text=text, **found)


def _rebuild(kind: type[Embedder], settings: dict[str, Any]) -> Embedder:
    return kind(**settings)


def _given(sentences: Any, inputs: Any) -> Any:
    """What was given by one of two names."""
    if sentences is not None and inputs is not None:
        raise TypeError("sentences and inputs are the same; give one of them")
    return inputs if sentences is None else sentences


def _rows(vectors: ArrayLike) -> NDArray[np.float32]:
    """Vectors as rows."""
    import numpy as np

    rows = np.atleast_2d(np.asarray(vectors, dtype=np.float32))
    if rows.ndim != 2:
        raise ValueError(f"expected a vector or an array of vectors, not an array of shape {rows.shape}")
    return rows


def _unit(vectors: ArrayLike) -> NDArray[np.float32]:
    """Rows of length 1; zeros stay zero."""
    import numpy as np

    rows = _rows(vectors)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norms > 0, norms, 1), dtype=np.float32)
