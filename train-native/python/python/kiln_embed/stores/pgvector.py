"""Postgres with pgvector, by psycopg.

>>> from kiln_embed.stores import pgvector
>>> with psycopg.connect("postgresql://localhost/passages") as connection:
...     pgvector.write(connection, "passages", "vectors/")
...     near = "select id, text from passages order by embedding <=> %s limit 3"
...     connection.execute(near, [Embedder().encode_query("cooking with eggs")]).fetchall()
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from pgvector.psycopg import register_vector
from psycopg import Connection, sql
from psycopg.types.json import Jsonb

from kiln_embed._provenance import KEY, Provenance
from kiln_embed.stores._output import EMBEDDING, ID, TEXT
from kiln_embed.stores._rows import Origin, Rows, Vectors, matrix, payloads, refuse_others, refuse_width, rows_of


def write(
    connection: Connection[Any],
    table: str,
    vectors: Vectors,
    *,
    provenance: Origin = None,
    rows: int = 5_000,
) -> int:
    """Writes vectors into a table, which is made where it is not there, and returns how many rows were read.

    The table is `(id text primary key, text text, embedding vector(n), payload jsonb)`; the payload is what else the rows
    have. A row whose id is there is changed if it differs. Which model it is, is in the table's comment. Indexes
    are yours to make, best when the rows are there. `rows` rows are a transaction, or a savepoint of yours.

    Args:
        connection: psycopg's connection. pgvector's types are registered with it.
        table: Name of the table, with its schema's before a point if that is not in the search path.
        vectors: What `kiln embed` wrote, by its path or as an `Output`; or tables or batches of Arrow, one or many,
            with columns `id` and `embedding`.
        provenance: Which model the vectors are of, where they do not say it: the `Embedder`, or a `Provenance`.
        rows: Most rows that are held, and written in one transaction.

    Raises:
        ValueError: The table has vectors of another model or width, or was made by somebody else; rows without ids.
    """
    given = rows_of(vectors, provenance, rows)
    if given is None:
        return 0
    name = sql.Identifier(*table.split("."))
    _open(connection, table, name, given)
    read = 0
    for chunk in given.chunks:
        _write(connection, name, chunk)
        read += chunk.num_rows
    return read


def _open(connection: Connection[Any], table: str, name: sql.Identifier, given: Rows) -> None:
    """Makes the table where it is not there, and refuses one of other vectors."""
    shown = name.as_string(connection)
    with connection.transaction():
        # Others that write wait until the table is there with its comment.
        connection.execute("select pg_advisory_xact_lock(hashtext(%s))", [f"{KEY}:{shown}"])
        connection.execute("create extension if not exists vector")
        register_vector(connection)
        row = connection.execute("select to_regclass(%s)::oid", [shown]).fetchone()
        oid = row[0] if row else None
        if oid is None:
            made = sql.SQL(
                "create table {} (id text primary key, text text, embedding vector({}) not null, payload jsonb not null)"
            )
            connection.execute(made.format(name, sql.Literal(given.dimensions)))
            comment = json.dumps({KEY: given.provenance.as_dict()})
            connection.execute(sql.SQL("comment on table {} is {}").format(name, sql.Literal(comment)))
            return
        place = f"the table {table!r}"
        row = connection.execute("select obj_description(%s, 'pg_class')", [oid]).fetchone()
        refuse_others(_provenance(row[0] if row else None), given, place)
        width = "select atttypmod from pg_attribute where attrelid = %s and attname = 'embedding'"
        row = connection.execute(width, [oid]).fetchone()
        refuse_width(row[0] if row else 0, given, place)


def _provenance(comment: str | None) -> Provenance | None:
    try:
        kept = json.loads(comment or "").get(KEY)
    except (ValueError, AttributeError):
        return None
    return None if kept is None else Provenance.from_dict(kept)


#: Dates and what else JSON has not are written as texts.
_dumps = partial(json.dumps, default=str)


def _write(connection: Connection[Any], name: sql.Identifier, chunk: Any) -> None:
    """COPY into a table of this transaction, and from there what is new or changed."""
    ids, others = chunk.column(ID).to_pylist(), payloads(chunk)
    texts = chunk.column(TEXT).to_pylist() if TEXT in chunk.schema.names else [None] * len(ids)
    with connection.transaction(), connection.cursor() as cursor:
        # The columns that are ours: a table may have got others.
        cursor.execute(
            "create temporary table kiln_rows (id text, text text, embedding vector, payload jsonb) on commit drop"
        )
        with cursor.copy("copy kiln_rows (id, text, embedding, payload) from stdin with (format binary)") as copy:
            copy.set_types(["text", "text", "vector", "jsonb"])
            for id, text, vector, payload in zip(ids, texts, matrix(chunk.column(EMBEDDING)), others):
                copy.write_row((id, text, vector, Jsonb(payload, dumps=_dumps)))
        merge = sql.SQL(
            "insert into {0} as kept (id, text, embedding, payload) "
            "select id, text, embedding, payload from kiln_rows on conflict (id) do update "
            "set text = excluded.text, embedding = excluded.embedding, payload = excluded.payload "
            "where (kept.text, kept.embedding, kept.payload) "
            "is distinct from (excluded.text, excluded.embedding, excluded.payload)"
        )
        cursor.execute(merge.format(name))
        cursor.execute("drop table kiln_rows")
