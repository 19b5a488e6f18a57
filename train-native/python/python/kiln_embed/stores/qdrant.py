"""Qdrant.

>>> from kiln_embed.stores import qdrant
>>> qdrant.write(QdrantClient("http://localhost:6333"), "passages", "vectors/")
>>> client.query_points("passages", Embedder().encode_query("cooking with eggs"), limit=3)
"""

from __future__ import annotations

import uuid

from qdrant_client import QdrantClient, models

from kiln_embed._provenance import KEY, Provenance
from kiln_embed.stores._output import EMBEDDING, ID, TEXT
from kiln_embed.stores._rows import Origin, Rows, Vectors, matrix, payloads, refuse_others, refuse_width, rows_of

#: Points are named by integers or UUIDs: of each id this one's, so that it is the same every time.
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "kiln-embed")


def point_id(id: str) -> str:
    """The name of the point of a row."""
    return str(uuid.uuid5(NAMESPACE, id))


def write(
    client: QdrantClient,
    collection: str,
    vectors: Vectors,
    *,
    provenance: Origin = None,
    rows: int = 1_000,
    distance: models.Distance = models.Distance.COSINE,
) -> int:
    """Writes vectors into a collection, which is made where it is not there, and returns how many rows were read.

    A point's payload has the row's `id` and `text`, and what else the row has; its name is `point_id` of the id, so that
    a point that is there is replaced. Which model it is, is in the collection's metadata, which Qdrant has since 1.16.

    Args:
        client: Qdrant's client.
        collection: Name of the collection.
        vectors: What `kiln embed` wrote, by its path or as an `Output`; or tables or batches of Arrow, one or many,
            with columns `id` and `embedding`.
        provenance: Which model the vectors are of, where they do not say it: the `Embedder`, or a `Provenance`.
        rows: Most rows that are held, and sent at once.
        distance: Of a collection that is made. Where it is the cosine, Qdrant keeps vectors divided by their norm.

    Raises:
        ValueError: The collection has vectors of another model or width, or was made by somebody else; rows without
            ids.
    """
    given = rows_of(vectors, provenance, rows)
    if given is None:
        return 0
    _open(client, collection, given, distance)
    read = 0
    for chunk in given.chunks:
        ids, others = chunk.column(ID).to_pylist(), payloads(chunk)
        texts = chunk.column(TEXT).to_pylist() if TEXT in chunk.schema.names else None
        for row, payload in enumerate(others):
            payload[ID] = ids[row]
            if texts is not None:
                payload[TEXT] = texts[row]
        client.upload_collection(
            collection,
            vectors=matrix(chunk.column(EMBEDDING)),
            payload=others,
            ids=[point_id(id) for id in ids],
            batch_size=chunk.num_rows,
            wait=True,
        )
        read += chunk.num_rows
    return read


def _open(client: QdrantClient, collection: str, given: Rows, distance: models.Distance) -> None:
    if not client.collection_exists(collection):
        client.create_collection(
            collection,
            vectors_config=models.VectorParams(size=given.dimensions, distance=distance),
            metadata={KEY: given.provenance.as_dict()},
        )
    place, config = f"the collection {collection!r}", client.get_collection(collection).config
    kept = (config.metadata or {}).get(KEY)
    refuse_others(None if kept is None else Provenance.from_dict(kept), given, place)
    one = config.params.vectors
    if isinstance(one, models.VectorParams):
        refuse_width(one.size, given, place)
