"""Chroma's `EmbeddingFunction`, registered as `kiln`.

>>> from kiln_embed.integrations.chroma import KilnEmbeddingFunction
>>> client.create_collection("passages", embedding_function=KilnEmbeddingFunction())
"""

from __future__ import annotations

from typing import Any, cast

from chromadb.api.types import Documents, EmbeddingFunction, Embeddings, Space
from chromadb.utils.embedding_functions import register_embedding_function

from kiln_embed import Embedder


@register_embedding_function
class KilnEmbeddingFunction(EmbeddingFunction[Documents]):
    """Embeds documents and queries, each with the model's own prompt.

    Args:
        model: As of `Embedder`.
        device: As of `Embedder`.
        weights: As of `Embedder`.
        truncate_dim: As of `Embedder`.
    """

    def __init__(
        self,
        model: str = "kiln-mini",
        device: str = "auto",
        weights: str | None = None,
        truncate_dim: int | None = None,
    ) -> None:
        self._settings = {"model": model, "device": device, "weights": weights, "truncate_dim": truncate_dim}
        self.embedder = Embedder(model, device=device, weights=weights, truncate_dim=truncate_dim)

    def __call__(self, input: Documents) -> Embeddings:
        """Vectors of documents."""
        return cast(Embeddings, list(self.embedder.encode_document(input)))

    def embed_query(self, input: Documents) -> Embeddings:
        """Vectors of queries."""
        return cast(Embeddings, list(self.embedder.encode_query(input)))

    @staticmethod
    def name() -> str:
        """The name by which Chroma keeps it."""
        return "kiln"

    def default_space(self) -> Space:
        """Cosines compare what most models give."""
        return "cosine"

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> KilnEmbeddingFunction:
        """The same again, of what `get_config` gave."""
        return KilnEmbeddingFunction(**config)

    def get_config(self) -> dict[str, Any]:
        """What a collection keeps of it."""
        return dict(self._settings)
