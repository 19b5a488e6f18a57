"""LanceDB's `EmbeddingFunction`, registered as `kiln`.

>>> import kiln_embed.integrations.lancedb
>>> kiln = lancedb.embeddings.get_registry().get("kiln").create()
>>> class Passage(LanceModel):
...     text: str = kiln.SourceField()
...     vector: Vector(kiln.ndims()) = kiln.VectorField()
"""

from __future__ import annotations

from typing import Any, Optional

from lancedb.embeddings import TextEmbeddingFunction, register
from pydantic import PrivateAttr

from kiln_embed import Embedder


@register("kiln")
class KilnEmbeddings(TextEmbeddingFunction):
    """Embeds rows and queries, each with the model's own prompt; the fields are `Embedder`'s arguments."""

    name: str = "kiln-mini"
    device: str = "auto"
    weights: Optional[str] = None
    truncate_dim: Optional[int] = None
    _embedder: Optional[Embedder] = PrivateAttr(default=None)

    @property
    def embedder(self) -> Embedder:
        """The model, loaded once."""
        if self._embedder is None:
            self._embedder = Embedder(
                self.name, device=self.device, weights=self.weights, truncate_dim=self.truncate_dim
            )
        return self._embedder

    def ndims(self) -> int:
        """Width of the vectors."""
        return self.embedder.get_sentence_embedding_dimension()

    def generate_embeddings(self, texts: Any, *_: Any, **__: Any) -> list[Any]:
        """Vectors of rows."""
        return list(self.embedder.encode_document(list(texts)))

    def compute_query_embeddings(self, query: str, *_: Any, **__: Any) -> list[Any]:
        """The vector of a query."""
        return [self.embedder.encode_query(query)]
