import pytest
from places import DOCUMENTS, QUERY
from qdrant_client import QdrantClient, models

from kiln_embed.integrations.qdrant import KilnQdrant


def test_a_collection_is_made_filled_and_searched():
    client = QdrantClient(":memory:")
    texts = KilnQdrant(client, "passages", device="cpu")
    ids = texts.add(DOCUMENTS, payloads=({"row": row} for row in range(4)), ids=[10, 11, 12, 13])
    assert ids == [10, 11, 12, 13]
    hit = texts.search(QUERY, k=1)[0]
    assert hit.id == 11 and hit.payload == {"row": 1, "text": DOCUMENTS[1]} and 0 < hit.score <= 1
    first = models.Filter(must=[models.FieldCondition(key="row", match=models.MatchValue(value=0))])
    assert [hit.id for hit in texts.search(QUERY, k=3, query_filter=first)] == [10]
    more = KilnQdrant(client, "passages", texts.embedder)
    assert len(more.add(["another text"])) == 1 and client.count("passages").count == 5
    assert more.add([]) == []


def test_what_does_not_fit_is_said(prompted):
    client = QdrantClient(":memory:")
    texts = KilnQdrant(client, "passages", device="cpu")
    with pytest.raises(ValueError, match="384 dimensions, the model gives 32"):
        KilnQdrant(client, "passages", prompted, device="cpu")
    with pytest.raises(ValueError, match="1 texts, 1 payloads and 2 ids"):
        texts.add(["a"], ids=[1, 2])
