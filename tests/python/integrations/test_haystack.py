import pytest
from places import DOCUMENTS, QUERY, REPOSITORY
from haystack import Document, Pipeline
from haystack.components.retrievers import InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore

from kiln_embed import Embedder
from kiln_embed.integrations.haystack import KilnDocumentEmbedder, KilnRanker, KilnTextEmbedder

#: Haystack makes components of its own modules only, unless it is told of others.
OURS = "kiln_embed.integrations.haystack"


def test_a_pipeline_searches_with_them_and_is_saved():
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    embedded = KilnDocumentEmbedder(device="cpu").run([Document(content=text) for text in DOCUMENTS])["documents"]
    store.write_documents(embedded)
    pipeline = Pipeline()
    pipeline.add_component("embedder", KilnTextEmbedder(device="cpu"))
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=1))
    pipeline.connect("embedder.embedding", "retriever.query_embedding")
    found = pipeline.run({"embedder": {"text": QUERY}})["retriever"]["documents"]
    assert found[0].content == DOCUMENTS[1]

    alone = Pipeline()
    alone.add_component("embedder", KilnTextEmbedder(device="cpu"))
    again = Pipeline.loads(alone.dumps(), allowed_modules=[OURS])
    vectors = [one.run({"embedder": {"text": QUERY}})["embedder"]["embedding"] for one in (alone, again)]
    assert vectors[0] == vectors[1] and len(vectors[0]) == 384


def test_documents_are_embedded_with_their_meta_and_stay_as_they_were(prompted):
    embedder = Embedder(prompted, device="cpu")
    document = Document(content="a boat", meta={"title": "the river", "page": None})
    component = KilnDocumentEmbedder(prompted, "cpu", meta_fields_to_embed=["title", "page"], embedding_separator=" | ")
    embedded = component.run([document, Document(content=None)])["documents"]
    assert embedded[0].embedding == embedder.encode("the river | a boat").tolist() and document.embedding is None
    assert embedded[1].embedding == embedder.encode("").tolist()
    assert KilnTextEmbedder(prompted, "cpu").run("a boat")["embedding"] == embedder.encode("a boat", "query").tolist()
    assert component.run([])["documents"] == []
    with pytest.raises(TypeError, match="KilnTextEmbedder"):
        component.run("a boat")
    with pytest.raises(TypeError, match="KilnDocumentEmbedder"):
        KilnTextEmbedder(prompted, "cpu").run([document])


def test_a_ranker_sorts():
    ranker = KilnRanker(str(REPOSITORY / "tests/fixtures/rerankers/bert"), device="cpu", top_k=2)
    ranked = ranker.run(QUERY, [Document(content=text) for text in DOCUMENTS])["documents"]
    assert len(ranked) == 2 and ranked[0].score >= ranked[1].score
    pipeline = Pipeline()
    pipeline.add_component("ranker", ranker)
    assert Pipeline.loads(pipeline.dumps(), allowed_modules=[OURS]).get_component("ranker").top_k == 2
