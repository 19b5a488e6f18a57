"""LangChain's `Embeddings`.

>>> from kiln_embed.integrations.langchain import KilnEmbeddings
>>> store = InMemoryVectorStore(KilnEmbeddings())
"""

from __future__ import annotations

from typing import Any

from langchain_core.embeddings import Embeddings

from kiln_embed import Embedder


class KilnEmbeddings(Embeddings):
    """Embeds documents and queries, each with the model's own prompt.

    Args:
        model: As of `Embedder`, or an `Embedder`.
        settings: Of a new `Embedder`: `device`, `weights`, `truncate_dim`, ...
    """

    def __init__(self, model: Any = "kiln-mini", **settings: Any) -> None:
        self.embedder = model if isinstance(model, Embedder) else Embedder(model, **settings)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Vectors of documents."""
        vectors: list[list[float]] = self.embedder.encode_document(texts).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        vector: list[float] = self.embedder.encode_query(text).tolist()
        return vector
