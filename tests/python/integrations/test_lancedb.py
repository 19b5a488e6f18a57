import lancedb
from places import DOCUMENTS, QUERY
from lancedb.embeddings import get_registry
from lancedb.pydantic import LanceModel, Vector

import kiln_embed.integrations.lancedb  # noqa: F401
from kiln_embed import Embedder


def test_a_table_embeds_rows_and_queries(tmp_path):
    kiln = get_registry().get("kiln").create(device="cpu")
    assert kiln.ndims() == 384

    class Passage(LanceModel):
        text: str = kiln.SourceField()
        vector: Vector(384) = kiln.VectorField()

    database = lancedb.connect(tmp_path / "db")
    table = database.create_table("passages", schema=Passage)
    table.add([{"text": text} for text in DOCUMENTS])
    assert table.search(QUERY).limit(1).to_list()[0]["text"] == DOCUMENTS[1]
    # The table keeps which function it was.
    again = lancedb.connect(tmp_path / "db").open_table("passages")
    assert again.search(QUERY).limit(1).to_list()[0]["text"] == DOCUMENTS[1]


def test_queries_have_their_prompt(prompted):
    kiln = get_registry().get("kiln").create(name=prompted, device="cpu")
    embedder = Embedder(prompted, device="cpu")
    assert kiln.compute_query_embeddings("a boat")[0].tolist() == embedder.encode("a boat", "query").tolist()
    assert kiln.compute_source_embeddings(["a boat"])[0].tolist() == embedder.encode("a boat").tolist()


def test_arrow_vectors_become_a_table(tmp_path):
    import pyarrow

    vectors = pyarrow.array(Embedder(device="cpu").encode_arrow(DOCUMENTS))
    data = pyarrow.table({"text": DOCUMENTS, "vector": vectors})
    table = lancedb.connect(tmp_path / "db").create_table("plain", data)
    query = Embedder(device="cpu").encode(QUERY)
    assert table.search(query).limit(1).to_list()[0]["text"] == DOCUMENTS[1]
