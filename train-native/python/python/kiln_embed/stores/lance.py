"""LanceDB.

>>> from kiln_embed.stores import lance
>>> lance.write("passages-db", "passages", "vectors/")
>>> table = lancedb.connect("passages-db").open_table("passages")
>>> table.search(Embedder().encode_query("cooking with eggs")).limit(3).to_list()
"""

from __future__ import annotations

import json
import os

import lancedb
import pyarrow as pa

from kiln_embed._provenance import KEY, Provenance
from kiln_embed.stores._output import EMBEDDING, ID, TEXT
from kiln_embed.stores._rows import Origin, Rows, Vectors, refuse_others, refuse_width, rows_of


def write(
    database: lancedb.DBConnection | str | os.PathLike[str],
    table: str,
    vectors: Vectors,
    *,
    provenance: Origin = None,
    rows: int = 50_000,
) -> int:
    """Writes vectors into a table, which is made where it is not there, and returns how many rows were read.

    The table has the columns `id`, `text` and `embedding`, and what else the rows have. A row whose id is there takes
    that one's place, if anything but its vector differs: of one model and one text there is one vector. Which model
    it is, is in the metadata of the table's schema.

    Args:
        database: A connection, or where the database is.
        table: Name of the table.
        vectors: What `kiln embed` wrote, by its path or as an `Output`; or tables or batches of Arrow, one or many,
            with columns `id` and `embedding`.
        provenance: Which model the vectors are of, where they do not say it: the `Embedder`, or a `Provenance`.
        rows: Most rows that are held, and written at once: each time makes a version of the table.

    Raises:
        ValueError: The table has vectors of another model or width, or was made by somebody else; rows without ids.
    """
    if not isinstance(database, lancedb.DBConnection):
        database = lancedb.connect(os.fspath(database))
    given = rows_of(vectors, provenance, rows)
    if given is None:
        return 0
    place = f"the table {table!r}"
    opened = _open(database, table, given)
    refuse_others(_provenance(opened.schema), given, place)
    refuse_width(opened.schema.field(EMBEDDING).type.list_size, given, place)
    if set(given.schema.names) != set(opened.schema.names):
        raise ValueError(f"{place} has the columns {', '.join(opened.schema.names)}, and these rows have "
                         f"{', '.join(given.schema.names)}")  # fmt: skip
    read = 0
    for chunk in given.chunks:
        merge = opened.merge_insert(ID).when_matched_update_all(where=_differs(given.schema))
        merge.when_not_matched_insert_all().execute(chunk.select(opened.schema.names).cast(opened.schema))
        read += chunk.num_rows
    return read


def _open(database: lancedb.DBConnection, table: str, given: Rows) -> lancedb.table.Table:
    try:
        return database.open_table(table)
    except (ValueError, FileNotFoundError):
        schema = given.schema.with_metadata({KEY: json.dumps(given.provenance.as_dict())})
        # Another process may have made it meanwhile.
        return database.create_table(table, schema=schema, exist_ok=True)


def _provenance(schema: pa.Schema) -> Provenance | None:
    kept = (schema.metadata or {}).get(KEY.encode())
    return None if kept is None else Provenance.from_dict(json.loads(kept))


def _differs(schema: pa.Schema) -> str | None:
    """Whether two rows of one id differ; None where that cannot be asked of their columns, or they have no texts, by which
    vectors are told apart."""
    others = [field for field in schema if field.name not in (ID, EMBEDDING)]
    if TEXT not in schema.names or any(pa.types.is_nested(field.type) for field in others):
        return None
    return " OR ".join(
        f"source.`{name}` != target.`{name}` OR (source.`{name}` IS NULL) != (target.`{name}` IS NULL)"
        for name in (field.name for field in others)
    )
