"""LlamaIndex's `BaseEmbedding`.

>>> from kiln_embed.integrations.llama_index import KilnEmbedding
>>> Settings.embed_model = KilnEmbedding()
"""

from __future__ import annotations

import asyncio
from typing import Any, Optional

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field, PrivateAttr

from kiln_embed import Embedder


class KilnEmbedding(BaseEmbedding):
    """Embeds texts and queries, each with the model's own prompt; the fields are `Embedder`'s arguments."""

    model_name: str = Field(default="kiln-mini", description="kiln-mini, a folder, a .kiln file or a Hub id.")
    device: str = Field(default="auto", description="auto, cpu, vulkan[:n] or cuda[:n].")
    weights: Optional[str] = Field(default=None, description="Precision to run the weights in.")
    truncate_dim: Optional[int] = Field(default=None, description="Dimensions of a vector to keep.")
    _embedder: Embedder = PrivateAttr()

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self._embedder = Embedder(
            self.model_name, device=self.device, weights=self.weights, truncate_dim=self.truncate_dim
        )

    @classmethod
    def class_name(cls) -> str:
        """The name by which LlamaIndex keeps it."""
        return "KilnEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = self._embedder.encode_query(query).tolist()
        return vector

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self._embedder.encode_document(texts).tolist()
        return vectors

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)
