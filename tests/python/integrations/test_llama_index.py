import asyncio

from places import DOCUMENTS, QUERY
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import TextNode

from kiln_embed import Embedder
from kiln_embed.integrations.llama_index import KilnEmbedding


def test_an_index_searches_with_it():
    model = KilnEmbedding(device="cpu")
    assert isinstance(model, BaseEmbedding)
    index = VectorStoreIndex([TextNode(text=text) for text in DOCUMENTS], embed_model=model)
    retriever = index.as_retriever(similarity_top_k=1)
    assert retriever.retrieve(QUERY)[0].text == DOCUMENTS[1]
    assert asyncio.run(retriever.aretrieve(QUERY))[0].text == DOCUMENTS[1]


def test_queries_have_their_prompt_and_settings_are_kept(prompted):
    model = KilnEmbedding(model_name=prompted, device="cpu", truncate_dim=8)
    embedder = Embedder(prompted, device="cpu", truncate_dim=8)
    assert model.get_query_embedding("a boat") == embedder.encode("a boat", "query").tolist()
    assert model.get_text_embedding("a boat") == embedder.encode("a boat").tolist()
    assert asyncio.run(model.aget_text_embedding_batch(["a", "b"])) == embedder.encode(["a", "b"]).tolist()
    saved = model.to_dict()
    assert saved["class_name"] == "KilnEmbedding" and saved["truncate_dim"] == 8
    assert KilnEmbedding.from_dict(saved).get_query_embedding("a boat") == model.get_query_embedding("a boat")
