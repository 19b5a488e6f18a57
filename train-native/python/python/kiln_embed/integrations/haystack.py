"""Haystack's embedders and ranker.

>>> from kiln_embed.integrations.haystack import KilnDocumentEmbedder, KilnTextEmbedder
>>> pipeline.add_component("embedder", KilnTextEmbedder())

A pipeline that was saved is loaded with `allowed_modules=["kiln_embed.integrations.haystack"]`: Haystack trusts its own
modules only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict

from kiln_embed import Embedder, Reranker


class _Embeds:
    """What both embedders are made of: a model that is loaded when a pipeline warms up."""

    def __init__(
        self,
        model: str = "kiln-mini",
        device: str = "auto",
        weights: str | None = None,
        truncate_dim: int | None = None,
    ) -> None:
        self.settings: dict[str, Any] = {
            "model": model,
            "device": device,
            "weights": weights,
            "truncate_dim": truncate_dim,
        }
        self._embedder: Embedder | None = None

    def warm_up(self) -> None:
        """Loads the model."""
        if self._embedder is None:
            self._embedder = Embedder(**self.settings)

    @property
    def embedder(self) -> Embedder:
        """The model, loaded where it was not yet."""
        if self._embedder is None:
            self._embedder = Embedder(**self.settings)
        return self._embedder


@component
class KilnTextEmbedder(_Embeds):
    """Embeds a query, with the model's prompt for queries.

    Args:
        model: As of `Embedder`.
        device: As of `Embedder`.
        weights: As of `Embedder`.
        truncate_dim: As of `Embedder`.
    """

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    def run(self, text: str) -> dict[str, Any]:
        """The vector of a text."""
        if not isinstance(text, str):
            raise TypeError(f"text must be str, not {type(text).__name__}; KilnDocumentEmbedder takes documents")
        return {"embedding": self.embedder.encode_query(text).tolist(), "meta": {"model": self.settings["model"]}}

    def to_dict(self) -> dict[str, Any]:
        """For pipelines that are saved."""
        return default_to_dict(self, **self.settings)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> KilnTextEmbedder:
        """For pipelines that are loaded."""
        return default_from_dict(cls, data)


@component
class KilnDocumentEmbedder(_Embeds):
    """Embeds documents, with the model's prompt for documents.

    Args:
        model: As of `Embedder`.
        device: As of `Embedder`.
        weights: As of `Embedder`.
        truncate_dim: As of `Embedder`.
        meta_fields_to_embed: Meta data that stand before the content.
        embedding_separator: What stands between them.
    """

    def __init__(
        self,
        model: str = "kiln-mini",
        device: str = "auto",
        weights: str | None = None,
        truncate_dim: int | None = None,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
    ) -> None:
        # `component` makes the class anew, so that super() would look for another one.
        _Embeds.__init__(self, model, device, weights, truncate_dim)
        self.meta_fields_to_embed = meta_fields_to_embed or []
        self.embedding_separator = embedding_separator

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """The documents with their vectors."""
        if not isinstance(documents, list) or not all(isinstance(one, Document) for one in documents):
            raise TypeError("documents must be a list of Document; KilnTextEmbedder takes a text")
        vectors = self.embedder.encode_document([self._text(one) for one in documents]).tolist()
        embedded = [replace(one, embedding=vector) for one, vector in zip(documents, vectors)]
        return {"documents": embedded, "meta": {"model": self.settings["model"]}}

    def _text(self, document: Document) -> str:
        meta = (document.meta.get(name) for name in self.meta_fields_to_embed)
        parts = [str(one) for one in meta if one is not None]
        return self.embedding_separator.join([*parts, document.content or ""])

    def to_dict(self) -> dict[str, Any]:
        """For pipelines that are saved."""
        return default_to_dict(
            self,
            **self.settings,
            meta_fields_to_embed=self.meta_fields_to_embed,
            embedding_separator=self.embedding_separator,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> KilnDocumentEmbedder:
        """For pipelines that are loaded."""
        return default_from_dict(cls, data)


@component
class KilnRanker:
    """Ranks documents with a cross-encoder.

    Args:
        model: As of `Reranker`.
        device: As of `Reranker`.
        top_k: Documents to keep; None: all.
    """

    def __init__(self, model: str, device: str = "auto", top_k: int | None = None) -> None:
        self.model, self.device, self.top_k = model, device, top_k
        self._reranker: Reranker | None = None

    def warm_up(self) -> None:
        """Loads the model."""
        if self._reranker is None:
            self._reranker = Reranker(self.model, device=self.device)

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, Any]:
        """The documents by their score, the most relevant first."""
        self.warm_up()
        assert self._reranker is not None
        hits = self._reranker.rank(query, [one.content or "" for one in documents], top_k=top_k or self.top_k)
        return {"documents": [replace(documents[hit["corpus_id"]], score=hit["score"]) for hit in hits]}

    def to_dict(self) -> dict[str, Any]:
        """For pipelines that are saved."""
        return default_to_dict(self, model=self.model, device=self.device, top_k=self.top_k)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> KilnRanker:
        """For pipelines that are loaded."""
        return default_from_dict(cls, data)
