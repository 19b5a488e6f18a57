import asyncio

from places import DOCUMENTS, QUERY
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore

from kiln_embed import Embedder
from kiln_embed.integrations.langchain import KilnEmbeddings


def test_a_store_searches_with_it():
    embeddings = KilnEmbeddings(device="cpu")
    assert isinstance(embeddings, Embeddings)
    store = InMemoryVectorStore.from_texts(DOCUMENTS, embeddings)
    assert store.similarity_search(QUERY, k=1)[0].page_content == DOCUMENTS[1]
    assert asyncio.run(store.asimilarity_search(QUERY, k=1))[0].page_content == DOCUMENTS[1]


def test_queries_have_their_prompt(prompted):
    embedder = Embedder(prompted, device="cpu")
    embeddings = KilnEmbeddings(embedder)
    assert embeddings.embed_query("a boat") == embedder.encode("a boat", "query").tolist()
    assert embeddings.embed_documents(["a boat"]) == embedder.encode(["a boat"]).tolist()
    assert embeddings.embed_query("a boat") != embeddings.embed_documents(["a boat"])[0]
    assert embeddings.embed_documents([]) == []
