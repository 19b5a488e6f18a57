import chromadb
import numpy as np
from places import DOCUMENTS, QUERY

from kiln_embed import Embedder
from kiln_embed.integrations.chroma import KilnEmbeddingFunction


def test_a_collection_embeds_documents_and_queries(tmp_path):
    client = chromadb.PersistentClient(str(tmp_path))
    collection = client.create_collection("passages", embedding_function=KilnEmbeddingFunction(device="cpu"))
    collection.add(ids=[str(i) for i in range(4)], documents=DOCUMENTS)
    assert collection.query(query_texts=[QUERY], n_results=1)["documents"] == [[DOCUMENTS[1]]]
    # The collection keeps which function it was.
    again = client.get_collection("passages")
    assert again.query(query_texts=[QUERY], n_results=1)["documents"] == [[DOCUMENTS[1]]]


def test_queries_have_their_prompt_and_settings_are_kept(prompted):
    function = KilnEmbeddingFunction(prompted, device="cpu", truncate_dim=8)
    embedder = Embedder(prompted, device="cpu", truncate_dim=8)
    assert np.array_equal(function.embed_query(["a boat"])[0], embedder.encode("a boat", "query"))
    assert np.array_equal(function(["a boat"])[0], embedder.encode("a boat"))
    again = KilnEmbeddingFunction.build_from_config(function.get_config())
    assert again.get_config() == function.get_config() and not function.is_legacy()
