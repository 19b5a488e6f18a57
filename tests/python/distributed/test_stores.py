"""LanceDB, Qdrant and Postgres themselves: what is written is found, once, and other models are refused."""

import json
import multiprocessing
import os
import signal

import lancedb
import numpy as np
import psycopg
import pyarrow
import pyarrow.parquet
import pytest
from corpus import REPOSITORY, nearest, passages
from qdrant_client import QdrantClient, models

from kiln_embed import Embedder
from kiln_embed._columns import ColumnEmbedder
from kiln_embed._provenance import KEY
from kiln_embed.stores import Output, Provenance, lance, pgvector, qdrant


class Lance:
    """A database of LanceDB."""

    def __init__(self, folder):
        self.folder = folder
        self.database = lancedb.connect(folder)

    def write(self, name, vectors, **how):
        return lance.write(self.database, name, vectors, **how)

    def rows(self, name):
        return {row["id"]: row for row in self.database.open_table(name).to_arrow().to_pylist()}

    def nearest(self, name, query, k):
        found = self.database.open_table(name).search(query).distance_type("cosine").limit(k).to_list()
        return [row["id"] for row in found]

    def others(self, name):
        self.database.create_table(name, pyarrow.table({"id": ["x"], "embedding": [[1.0, 2.0]]}))


class Qdrant:
    """Qdrant's client with its own engine, in this process; its disk is slow, and only for what outlives that."""

    def __init__(self, folder=None):
        self.client = QdrantClient(path=str(folder)) if folder else QdrantClient(":memory:")

    def write(self, name, vectors, **how):
        return qdrant.write(self.client, name, vectors, **how)

    def rows(self, name):
        points, _ = self.client.scroll(name, limit=100_000, with_vectors=True)
        assert all(point.id == qdrant.point_id(point.payload["id"]) for point in points)
        rows = [{**point.payload, "embedding": point.vector} for point in points]
        assert len({row["id"] for row in rows}) == len(rows)
        return {row["id"]: row for row in rows}

    def nearest(self, name, query, k):
        return [point.payload["id"] for point in self.client.query_points(name, query, limit=k).points]

    def others(self, name):
        self.client.create_collection(
            name, vectors_config=models.VectorParams(size=384, distance=models.Distance.COSINE)
        )


class Postgres:
    """A server of Postgres with pgvector."""

    def __init__(self, uri):
        self.uri = uri
        self.connection = psycopg.connect(uri)

    def write(self, name, vectors, **how):
        return pgvector.write(self.connection, name, vectors, **how)

    def rows(self, name):
        # Another connection: what it sees is committed.
        with psycopg.connect(self.uri) as other:
            pgvector.register_vector(other)
            found = other.execute(f"select id, text, embedding, payload from {name}").fetchall()
        return {
            id: {"id": id, "text": text, "embedding": vector.to_numpy(), **payload} for id, text, vector, payload in found
        }

    def nearest(self, name, query, k):
        with psycopg.connect(self.uri) as other:
            pgvector.register_vector(other)
            near = f"select id from {name} order by embedding <=> %s limit %s"
            return [id for (id,) in other.execute(near, [query, k])]

    def others(self, name):
        self.connection.execute(f"create table {name} (id text, embedding vector(384))")
        self.connection.commit()


@pytest.fixture(params=["lance", "qdrant", "postgres"])
def store(request, tmp_path):
    if request.param == "postgres":
        store = Postgres(request.getfixturevalue("server"))
        # Each test has its own.
        store.connection.execute("drop schema public cascade; create schema public")
        store.connection.commit()
        yield store
        store.connection.close()
    else:
        yield Lance(tmp_path / "store") if request.param == "lance" else Qdrant()


@pytest.fixture(scope="module")
def prompted():
    return Embedder(REPOSITORY / "tests/compat/v1/model", device="cpu")


def embedded(embedder, table, **how):
    vectors = pyarrow.array(embedder.encode_arrow(table["text"], **how))
    return table.append_column("embedding", vectors)


def test_what_kiln_embed_wrote_is_found_as_by_comparing_with_all(store, vectors, embedder, expected):
    assert store.write("passages", vectors) == 2400
    rows = store.rows("passages")
    assert rows.keys() == expected.keys()
    for row in rows.values():
        # Qdrant divides them by their norm once more.
        assert np.allclose(row["embedding"], expected[row["id"]], rtol=0, atol=1e-6)
    assert [row["text"] for _, row in sorted(rows.items())] == passages()["text"].to_pylist()
    names, matrix = list(expected), np.stack(list(expected.values()))
    for text in ["cooking with eggs", "a boat on the river", passages()["text"][1234].as_py()]:
        query = embedder.encode_query(text)
        exact = [names[row] for row in nearest(matrix, query, 10)]
        found = store.nearest("passages", query, 10)
        # Those that are equally near may be in another order.
        cosines = [sorted((float(expected[name] @ query) for name in these), reverse=True) for these in (exact, found)]
        assert len(set(found)) == 10 and np.allclose(*cosines, rtol=0, atol=1e-6)
        assert exact[0] == found[0]


def test_a_second_run_changes_nothing_and_a_changed_row_takes_its_place(store, vectors, embedder):
    for _ in range(2):
        assert store.write("passages", vectors, rows=700) == 2400
        before = store.rows("passages")
        assert len(before) == 2400
    changed = embedded(embedder, pyarrow.table({"id": ["p000007", "new"], "text": ["another text", "one more"]}))
    assert store.write("passages", changed, provenance=embedder) == 2
    rows = store.rows("passages")
    assert len(rows) == 2401 and rows["p000007"]["text"] == "another text"
    assert np.allclose(rows["p000007"]["embedding"], embedder.encode("another text"), rtol=0, atol=1e-6)
    for name in before.keys() - {"p000007"}:
        assert np.array_equal(rows[name]["embedding"], before[name]["embedding"])


def test_a_vector_without_its_text_takes_the_former_ones_place(store, embedder):
    for text in ("one text", "quite another"):
        row = embedded(embedder, pyarrow.table({"id": ["a"], "text": [text], "rank": [7]})).drop_columns("text")
        store.write("bare", row, provenance=embedder)
        kept = store.rows("bare")["a"]["embedding"]
        assert np.allclose(kept, embedder.encode(text), rtol=0, atol=1e-6)


def test_postgres_and_lance_write_nothing_that_is_there(server, vectors, tmp_path):
    table = Lance(tmp_path / "lance")
    table.write("passages", vectors)
    files = sorted((tmp_path / "lance").rglob("*.lance"))
    table.write("passages", vectors)
    kept = [path for path in sorted((tmp_path / "lance").rglob("*.lance")) if path.is_file()]
    assert kept == [path for path in files if path.is_file()]
    postgres = Postgres(server)
    postgres.connection.execute("drop schema public cascade; create schema public")
    postgres.connection.commit()
    postgres.write("passages", vectors)
    rows = "select sum(xmin::text::bigint), count(*) from passages"
    before = postgres.connection.execute(rows).fetchone()
    postgres.connection.commit()
    postgres.write("passages", vectors)
    assert postgres.connection.execute(rows).fetchone() == before
    postgres.connection.close()


def test_a_later_batch_of_another_model_is_refused(store, embedder):
    def said(model):
        """Vectors that say whose they are, as adapters to engines leave them."""
        rows = embedded(embedder, passages(3))
        place = rows.schema.get_field_index("embedding")
        kept = {KEY: json.dumps(Provenance.of(model).as_dict())}
        field = pyarrow.field("embedding", rows.schema.field(place).type, metadata=kept)
        return rows.set_column(place, field, rows.column(place).cast(field.type))

    with pytest.raises(ValueError, match=r"the vectors from row 3 on are of kiln-mini \(fingerprint"):
        store.write("mixed", [said(embedder), said(Embedder(weights="f32", device="cpu"))])
    assert store.write("alike", [said(embedder), said(embedder)], rows=3) == 6


def test_postgres_lets_a_table_have_columns_of_its_owners(server, vectors, embedder):
    postgres = Postgres(server)
    postgres.connection.execute("drop schema public cascade; create schema public")
    postgres.connection.commit()
    postgres.write("passages", vectors)
    postgres.connection.execute(
        "alter table passages add words tsvector generated always as (to_tsvector('english', text)) stored, "
        "add since timestamptz not null default now()"
    )
    postgres.connection.commit()
    row = embedded(embedder, pyarrow.table({"id": ["new"], "text": ["one more lighthouse"]}))
    assert postgres.write("passages", row, provenance=embedder) == 1
    found = "select id from passages where words @@ to_tsquery('english', 'lighthouses & more') and since is not null"
    assert ("new",) in postgres.connection.execute(found).fetchall()
    postgres.connection.close()


def test_other_models_are_refused(store, vectors, embedder, prompted):
    store.write("passages", vectors)
    before = store.rows("passages")
    table = passages(3)
    others = [
        (embedded(prompted, table), prompted),
        (embedded(embedder, table, truncate_dim=64), Provenance.of(embedder, truncate_dim=64)),
        (embedded(embedder, table, prompt="query: "), Provenance.of(embedder, prompt="query: ")),
        (embedded(embedder, table), Embedder(weights="f32", device="cpu")),
    ]
    for rows, provenance in others:
        with pytest.raises(ValueError, match="'passages' has vectors of kiln-mini.kiln .*cannot be compared with them"):
            store.write("passages", rows, provenance=provenance)
    with pytest.raises(ValueError, match="has vectors of 384 dimensions; these have 64"):
        store.write("passages", others[1][0], provenance=embedder)
    with pytest.raises(ValueError, match="these vectors are of kiln-mini.kiln .*, and not of"):
        store.write("elsewhere", vectors, provenance=prompted)
    assert store.rows("passages").keys() == before.keys()
    store.others("somebodys")
    with pytest.raises(ValueError, match="'somebodys' was there before, and does not say which model"):
        store.write("somebodys", vectors)


def test_batches_come_as_they_are_written(store, embedder):
    table = embedded(embedder, passages(1000))
    seen = []

    def batches():
        for number, batch in enumerate(table.to_batches(max_chunksize=50)):
            seen.append((number * 50, len(store.rows("passages")) if number > 4 else 0))
            yield batch

    assert store.write("passages", batches(), provenance=embedder, rows=120) == 1000
    assert len(seen) == 20
    # Never more than a chunk and what fills it are under way.
    assert all(given - written <= 120 + 50 for given, written in seen[5:]), seen
    assert len(store.rows("passages")) == 1000


def test_what_the_adapters_give_says_its_model(store, embedder, vectors):
    mine = ColumnEmbedder(device="cpu").append(passages(30).drop_columns(["tags"]))
    assert store.write("passages", mine) == 30
    row = store.rows("passages")["p000003"]
    assert row["rank"] == 3 and np.allclose(row["embedding"], embedder.encode(row["text"]), rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="cannot be compared"):
        store.write("passages", ColumnEmbedder(prompt="query: ", device="cpu").append(passages(3)))


def write_and_die(kind, place, vectors, rows, after):
    """In a process of its own: dies before the batch after so many."""
    store = Postgres(place) if kind == "postgres" else {"lance": Lance, "qdrant": Qdrant}[kind](place)

    def batches():
        for number, batch in enumerate(Output(vectors).batches(rows)):
            if number == after:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    store.write("passages", batches(), provenance=Output(vectors).provenance, rows=rows)


@pytest.mark.parametrize("kind", ["lance", "qdrant", "postgres"])
def test_a_run_that_was_killed_goes_on(kind, request, tmp_path, vectors, expected):
    place = tmp_path / "store"
    if kind == "postgres":
        place = request.getfixturevalue("server")
        with psycopg.connect(place) as connection:
            connection.execute("drop schema public cascade; create schema public")
    child = multiprocessing.get_context("spawn").Process(
        target=write_and_die, args=(kind, place, vectors, 100, 12), daemon=True
    )
    child.start()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL
    store = Postgres(place) if kind == "postgres" else {"lance": Lance, "qdrant": Qdrant}[kind](place)
    assert 1000 <= len(store.rows("passages")) < 2400
    store.write("passages", vectors, rows=500)
    assert store.rows("passages").keys() == expected.keys()


def test_several_processes_share_the_files(store, vectors, expected):
    assert sum(store.write("passages", Output(vectors, shard=(share, 3))) for share in range(3)) == 2400
    assert store.rows("passages").keys() == expected.keys()


def good():
    return {"id": ["a", "b"], "embedding": pyarrow.array([[1.0, 2.0], [3.0, 4.0]], pyarrow.list_(pyarrow.float32(), 2))}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"id": ["a", None]}, "column 'id' is null in row 1"),
        ({"id": ["a", "a"]}, "the id 'a' is there 2 times"),
        ({"embedding": [[1.0, 2.0], None]}, "column 'embedding' is null in row 1"),
        ({"embedding": [[1.0, 2.0], [1.0]]}, "vectors of 2, 1 dimensions"),
        ({"embedding": [[1.0, 2.0], [1.0, float("nan")]]}, "the vector in row 1 has a value that is no number"),
        ({"embedding": ["x", "y"]}, "column 'embedding' has string, not lists"),
        ({"embedding": None}, "rows need one column 'embedding'; columns are 'id'"),
        ({"id": None}, "rows need one column 'id'; columns are 'embedding'"),
    ],
)
def test_rows_that_cannot_be_are_refused(tmp_path, changes, said):
    columns = {name: value for name, value in {**good(), **changes}.items() if value is not None}
    provenance = Provenance("m", "f")
    with pytest.raises(ValueError) as raised:
        lance.write(tmp_path / "db", "t", pyarrow.table(columns), provenance=provenance)
    assert said in str(raised.value)


def test_nothing_is_written_without_a_model(tmp_path):
    with pytest.raises(ValueError, match="nothing says which model"):
        lance.write(tmp_path / "db", "t", pyarrow.table(good()))
    assert lance.write(tmp_path / "db", "t", pyarrow.table(good()).slice(0, 0)) == 0
    others = [pyarrow.table(good()), pyarrow.table({"id": ["c"], "vector": [[1.0, 2.0]]})]
    with pytest.raises(ValueError, match="columns are 'id', 'vector'"):
        lance.write(tmp_path / "db", "t", others, provenance={"model": "m", "fingerprint": "f"}, rows=1)


def test_one_file_of_each_kind(tmp_path, docs, expected, embedder, prompted):
    from kiln_embed import run

    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{text}\n" for text in passages(100)["text"].to_pylist()))
    model = REPOSITORY / "web-demo/kiln-mini.kiln"
    matrix = embedder.encode(passages(100)["text"])
    for ending in ["parquet", "jsonl", "npy"]:
        target = tmp_path / f"v.{ending}"
        run("embed", input=texts, output=target, model=model, device="cpu")
        assert lance.write(tmp_path / "db", ending, target, provenance=embedder, rows=30) == 100
        rows = lancedb.connect(tmp_path / "db").open_table(ending).to_arrow().sort_by("id").to_pylist()
        assert {row["id"] for row in rows} == {f"v.{ending}#{row}" for row in range(100)}
        for row in rows:
            number = int(row["id"].partition("#")[2])
            assert np.array_equal(np.array(row["embedding"], np.float32), matrix[number])
            assert ending == "npy" or row["text"] == passages()["text"][number].as_py()
        said = Output(target).provenance
        assert said.agrees(Provenance.of(embedder)) if ending == "parquet" else said is None
    # A Parquet file says its model by itself, and is not taken for another's.
    target = tmp_path / "v.parquet"
    assert lance.write(tmp_path / "db", "alone", target) == 100
    with pytest.raises(ValueError, match="these vectors are of"):
        lance.write(tmp_path / "db", "others", target, provenance=prompted)
    table = pyarrow.parquet.read_table(target)
    pyarrow.parquet.write_table(table.replace_schema_metadata(None), target)
    assert Output(target).provenance is None
    for odd in ["{}", "1", "no JSON"]:
        pyarrow.parquet.write_table(table.replace_schema_metadata({"kiln.settings": odd}), target)
        with pytest.raises(ValueError, match="v.parquet: kiln.settings is not what kiln embed writes"):
            Output(target)


def test_an_output_is_read_as_far_as_it_is_complete(tmp_path, vectors, docs):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(vectors, copy)
    (copy / "_kiln/03.parquet.json").unlink()
    assert sum(batch.num_rows for batch in Output(copy).batches(64)) == 2300
    line = json.loads((copy / "_kiln/04.parquet.json").read_text())
    (copy / "_kiln/04.parquet.json").write_text(json.dumps({**line, "settings": "others"}))
    with pytest.raises(ValueError, match="has vectors of 2 kinds"):
        Output(copy)
    (copy / "_kiln/04.parquet.json").write_text(json.dumps({**line, "rows": 99}))
    with pytest.raises(ValueError, match="has 100 rows instead of 99"):
        list(Output(copy).batches())
    (copy / "_kiln/04.parquet.json").write_text(json.dumps({**line, "output_bytes": 1}))
    with pytest.raises(ValueError, match="04.parquet has .* bytes instead of 1; run kiln embed again"):
        Output(copy)
    shutil.rmtree(copy / "_kiln")
    with pytest.raises(FileNotFoundError, match="has no _kiln/settings.json"):
        Output(copy)
    with pytest.raises(FileNotFoundError):
        Output(tmp_path / "nothing")
    with pytest.raises(ValueError, match="are read from"):
        Output(__file__)


def test_the_fingerprint_is_the_commands(vectors, embedder, tmp_path, prompted):
    kept = json.loads((vectors / "_kiln/settings.json").read_text())
    assert kept["fingerprint"] == embedder.fingerprint()
    texts = tmp_path / "in"
    texts.mkdir()
    (texts / "a.txt").write_text("a boat\n")
    from kiln_embed import run

    run("embed", input=texts, output=tmp_path / "out", model=prompted.model, device="cpu", dimensions=16,
        weights="int8", prompt_name="query")  # fmt: skip
    other = Embedder(prompted.model, weights="int8", truncate_dim=16, device="cpu")
    assert Output(tmp_path / "out").provenance.agrees(Provenance.of(other, prompt_name="query"))
    assert not Output(tmp_path / "out").provenance.agrees(Provenance.of(other))
    assert len({other.fingerprint(), other.fingerprint(8), prompted.fingerprint(), embedder.fingerprint()}) == 4
