"""`Reranker`: texts by how relevant they are to a query."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kiln_embed import _native
from kiln_embed._embedder import count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kiln_embed._embedder import Texts


class Reranker:
    """A reranker, which reads a query and a text together; methods are those of sentence-transformers'
    `CrossEncoder`.

    Args:
        model: A folder, a `.kiln` file or a Hub id (`owner/name[@revision]`): a cross-encoder with one score,
            Qwen3-Reranker, or a decoder saved with LogitScore.
        device: `auto`, `cpu`, `vulkan[:n]` or `cuda[:n]`.
        weights: Precision to run the weights in, as of `Embedder`.
        instruction: What is asked for, where the model's prompt has a place for it (Qwen3-Reranker).
        max_length: Truncate pairs to so many tokens; None: the model's own limit.
        show_progress_bar: Say on standard error how far a download is.

    Raises:
        FileNotFoundError: There is no such model.
        ValueError: A setting has no such value, or the model does not allow it.
        KilnError: The model is no reranker, or its files are damaged.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: str = "auto",
        weights: str | None = None,
        instruction: str | None = None,
        max_length: int | None = None,
        show_progress_bar: bool = False,
    ) -> None:
        self._settings: dict[str, Any] = {
            "model": os.fspath(model),
            "device": device,
            "weights": weights,
            "instruction": instruction,
            "max_length": count(max_length, "max_length"),
        }
        self._native = _native.PairModel(
            self._settings["model"],
            device,
            weights,
            instruction,
            self._settings["max_length"],
            bool(show_progress_bar),
        )

    @property
    def model(self) -> str:
        """What was named as the model."""
        return str(self._settings["model"])

    @property
    def device(self) -> str:
        """Where it computes."""
        return self._native.device

    @property
    def max_length(self) -> int:
        """Most tokens of a pair."""
        return self._native.max_length

    def predict(
        self,
        sentences: Sequence[tuple[str, str]],
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        *,
        activate: bool = True,
        batch_tokens: int | None = None,
    ) -> NDArray[np.float32]:
        """Scores of pairs of a query and a text: float32 `[pairs]`, higher for more relevant.

        Args:
            sentences: The pairs; one pair gives one score.
            batch_size: Taken for the sake of callers who pass it; no score depends on it.
            show_progress_bar: Say on standard error how far it is.
            activate: Whether scores go through the model's activation (often a sigmoid), as its own code has it.
            batch_tokens: Most tokens of a batch of pairs, padding included; None: what suits the device.
        """
        count(batch_size, "batch_size")
        one = len(sentences) == 2 and all(isinstance(part, str) for part in sentences)
        pairs = [sentences] if one else list(sentences)
        for i, pair in enumerate(pairs):
            if isinstance(pair, str) or not hasattr(pair, "__len__") or len(pair) != 2:
                raise TypeError(f"sentences[{i}] is no pair of a query and a text")
        queries, texts = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        scores = self._native.scores(
            queries, texts, bool(activate), count(batch_tokens, "batch_tokens"), bool(show_progress_bar)
        )
        return scores[0] if one else scores

    def rank(
        self,
        query: str,
        documents: Texts,
        top_k: int | None = None,
        return_documents: bool = False,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        *,
        batch_tokens: int | None = None,
    ) -> list[dict[str, Any]]:
        """Documents by how relevant they are to a query, the most relevant first; equal ones in their order.

        Each is `{"corpus_id": its place in documents, "score": ...}`, with its `"text"` where `return_documents`. No
        score depends on `batch_size`, which is taken as `predict` takes it.
        """
        count(batch_size, "batch_size")
        if not isinstance(query, str):
            raise TypeError(f"query must be str, not {type(query).__name__}")
        if isinstance(documents, str):
            raise TypeError("documents must be several texts, not one str")
        texts: Any = documents if hasattr(documents, "__len__") else list(documents)  # type: ignore[arg-type]
        top_k = count(top_k, "top_k")
        # Before the activation: a sigmoid's are equal where they are large.
        logits = self._native.scores(
            [query] * len(texts), texts, False, count(batch_tokens, "batch_tokens"), bool(show_progress_bar)
        )
        order = sorted(range(len(logits)), key=lambda row: (-logits[row], row))[:top_k]
        scores = self._native.activated([float(logits[row]) for row in order])
        ranked: list[dict[str, Any]] = [
            {"corpus_id": row, "score": score} for row, score in zip(order, scores)
        ]
        if return_documents:
            every = texts if hasattr(texts, "__getitem__") and isinstance(texts, (list, tuple)) else _strings(texts)
            for hit in ranked:
                hit["text"] = every[hit["corpus_id"]]
        return ranked

    def __repr__(self) -> str:
        return f"Reranker({self.model!r}, device={self.device!r}, max_length={self.max_length})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._settings)


def _rebuild(kind: type[Reranker], settings: dict[str, Any]) -> Reranker:
    return kind(**settings)


def _strings(texts: Any) -> list[str]:
    """Texts of an Arrow array or any other iterable."""
    to_list = getattr(texts, "to_pylist", None) or getattr(texts, "to_list", None) or getattr(texts, "tolist", None)
    return list(to_list() if to_list else texts)
