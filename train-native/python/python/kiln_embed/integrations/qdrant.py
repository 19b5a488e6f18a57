"""Qdrant: points and queries of texts.

>>> from kiln_embed.integrations.qdrant import KilnQdrant
>>> texts = KilnQdrant(client, "passages")
>>> texts.add(["a boat on the river", "two eggs"])
>>> texts.search("ships", k=1)[0].payload
{'text': 'a boat on the river'}
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qdrant_client import QdrantClient, models

from kiln_embed import Embedder


class KilnQdrant:
    """Texts in a collection of Qdrant, which is made for the model where it is not there.

    Args:
        client: Qdrant's client.
        collection: Name of the collection.
        model: As of `Embedder`, or an `Embedder`.
        settings: Of a new `Embedder`: `device`, `weights`, `truncate_dim`, ...

    Raises:
        ValueError: The collection has vectors of another width than the model.
    """

    def __init__(self, client: QdrantClient, collection: str, model: Any = "kiln-mini", **settings: Any) -> None:
        self.client, self.collection = client, collection
        self.embedder = model if isinstance(model, Embedder) else Embedder(model, **settings)
        dimensions = self.embedder.get_sentence_embedding_dimension()
        if not client.collection_exists(collection):
            client.create_collection(
                collection, vectors_config=models.VectorParams(size=dimensions, distance=models.Distance.COSINE)
            )
            return
        config = client.get_collection(collection).config.params.vectors
        if isinstance(config, models.VectorParams) and config.size != dimensions:
            raise ValueError(
                f"the collection {collection!r} has vectors of {config.size} dimensions, the model gives {dimensions}; "
                "name another collection, or set truncate_dim"
            )

    def add(
        self,
        texts: Iterable[str],
        payloads: Iterable[Mapping[str, Any]] | None = None,
        ids: Sequence[int | str] | None = None,
    ) -> list[int | str]:
        """Adds texts as points and returns their ids; a point's payload is the given one with the `text`."""
        texts = list(texts)
        own = [{} for _ in texts] if payloads is None else [dict(one) for one in payloads]
        names = [str(uuid.uuid4()) for _ in texts] if ids is None else list(ids)
        if not len(texts) == len(own) == len(names):
            raise ValueError(f"{len(texts)} texts, {len(own)} payloads and {len(names)} ids are no points")
        if texts:
            vectors = self.embedder.encode_document(texts).tolist()
            points = [
                models.PointStruct(id=name, vector=vector, payload={**payload, "text": text})
                for name, vector, payload, text in zip(names, vectors, own, texts)
            ]
            self.client.upsert(self.collection, points)
        return list(names)

    def search(self, query: str, k: int = 10, **how: Any) -> list[models.ScoredPoint]:
        """The k points nearest to a query; `how` are arguments of Qdrant's `query_points`."""
        vector = self.embedder.encode_query(query).tolist()
        found = self.client.query_points(self.collection, query=vector, limit=k, **how)
        return list(found.points)
