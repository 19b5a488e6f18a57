"""Rows as every store takes them: checked, in chunks, and with a model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Union

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kiln_embed._embedder import Embedder, count
from kiln_embed._provenance import KEY, Provenance
from kiln_embed.stores._output import EMBEDDING, ID, TEXT, Output

#: What `write` takes.
Vectors = Union[str, "os.PathLike[str]", Output, pa.Table, pa.RecordBatch, pa.RecordBatchReader, Iterable[Any]]
Origin = Union[Provenance, Embedder, Mapping[str, Any], None]


@dataclass(frozen=True)
class Rows:
    """Vectors on their way into a store."""

    provenance: Provenance
    dimensions: int
    #: Tables of at most so many rows as were asked for. Columns: `id`, a string, unique in its chunk; `embedding`,
    #: fixed-size lists of float32; and what else there is.
    chunks: Iterator[pa.Table]
    #: Of every chunk.
    schema: pa.Schema


def rows_of(vectors: Vectors, provenance: Origin, rows: int) -> Rows | None:
    """Looks at the first batch, and leaves the others where they are; None where there is not a row.

    Raises:
        ValueError: Nothing says which model the vectors are of, or two things say different ones; there are no ids or
            vectors, or some that cannot be.
    """
    limit = count(rows, "rows")
    assert limit is not None
    if isinstance(vectors, (str, os.PathLike)):
        vectors = Output(vectors)
    batches = (batch for batch in _batches(vectors, limit) if batch.num_rows)
    first = next(batches, None)
    if first is None:
        return None
    said = [one for one in (_given(provenance), _of_vectors(vectors, first.schema)) if one is not None]
    if not said:
        raise ValueError(
            "nothing says which model these vectors are of; give provenance=, such as the Embedder that made them"
        )
    if not said[0].agrees(said[-1]):
        raise ValueError(f"these vectors are of {said[-1]}, and not of {said[0]}")
    first = _tidy(first, 0)
    tidy = _tidied(first, batches, said[0])
    return Rows(said[0], first.schema.field(EMBEDDING).type.list_size, _chunks(tidy, limit), first.schema)


def _given(provenance: Origin) -> Provenance | None:
    if provenance is None or isinstance(provenance, Provenance):
        return provenance
    if isinstance(provenance, Embedder):
        return Provenance.of(provenance)
    return Provenance.from_dict(provenance)


def _of_vectors(vectors: Any, schema: pa.Schema) -> Provenance | None:
    """What an output says, or the column, as the adapters to Ray leave it there."""
    return vectors.provenance if isinstance(vectors, Output) else _of_column(schema)


def _of_column(schema: pa.Schema) -> Provenance | None:
    place = schema.get_field_index(EMBEDDING)
    kept = (schema.field(place).metadata or {}).get(KEY.encode()) if place >= 0 else None
    return None if kept is None else Provenance.from_dict(json.loads(kept))


def _batches(vectors: Any, rows: int) -> Iterator[pa.Table]:
    if isinstance(vectors, Output):
        return map(_table, vectors.batches(rows))
    if isinstance(vectors, (pa.Table, pa.RecordBatch)) or hasattr(vectors, "__arrow_c_stream__"):
        vectors = [vectors] if isinstance(vectors, pa.RecordBatch) else _stream(vectors)
    return map(_table, vectors)


def _stream(vectors: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(vectors, pa.RecordBatchReader):
        return iter(vectors)
    return iter(pa.RecordBatchReader.from_stream(vectors))


def _table(batch: Any) -> pa.Table:
    if isinstance(batch, pa.RecordBatch):
        return pa.Table.from_batches([batch])
    return batch if isinstance(batch, pa.Table) else pa.table(batch)


def _tidied(first: pa.Table, others: Iterable[pa.Table], provenance: Provenance) -> Iterator[pa.Table]:
    yield first
    before = first.num_rows
    for batch in others:
        said = _of_column(batch.schema)
        if said is not None and not provenance.agrees(said):
            raise ValueError(f"the vectors from row {before} on are of {said}, and not of {provenance}")
        tidy = _tidy(batch, before)
        try:
            yield tidy.select(first.schema.names).cast(first.schema)
        except (KeyError, ValueError, pa.ArrowInvalid) as error:
            raise ValueError(f"the batch from row {before} on is not as the first one: {error}") from error
        before += batch.num_rows


def _tidy(batch: pa.Table, before: int) -> pa.Table:
    """The rows with ids and vectors as stores take them; `before` rows came before, for what errors say."""
    for name in (ID, EMBEDDING):
        if batch.schema.names.count(name) != 1:
            here = ", ".join(map(repr, batch.schema.names))
            raise ValueError(f"rows need one column {name!r}; columns are {here}")
    batch = batch.combine_chunks()
    ids, vectors = batch.column(ID), batch.column(EMBEDDING)
    for name, column in ((ID, ids), (EMBEDDING, vectors)):
        if column.null_count:
            row = before + pc.index(column.is_null(), True).as_py()
            raise ValueError(f"column {name!r} is null in row {row}")
    ids = ids.cast(pa.string())
    if isinstance(vectors.type, pa.BaseExtensionType):
        # As the tensors of Ray and the embeddings of Daft.
        vectors = pa.chunked_array([chunk.storage for chunk in vectors.chunks], vectors.type.storage_type)
    kind = vectors.type
    if not pa.types.is_fixed_size_list(kind):
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            raise ValueError(f"column {EMBEDDING!r} has {kind}, not lists of float32")
        widths = pc.unique(pc.list_value_length(vectors)).to_pylist()
        if len(widths) != 1:
            raise ValueError(f"column {EMBEDDING!r} has vectors of {', '.join(map(str, widths))} dimensions")
        kind = pa.list_(kind.value_type, widths[0])
    vectors = vectors.cast(kind).cast(pa.list_(pa.float32(), kind.list_size))
    finite = np.isfinite(matrix(vectors)).all(axis=1)
    if not finite.all():
        raise ValueError(f"the vector in row {before + int(finite.argmin())} has a value that is no number")
    batch = batch.set_column(batch.schema.get_field_index(ID), ID, ids)
    if TEXT in batch.schema.names:
        batch = batch.set_column(batch.schema.get_field_index(TEXT), TEXT, batch.column(TEXT).cast(pa.string()))
    field = pa.field(EMBEDDING, vectors.type)
    return batch.set_column(batch.schema.get_field_index(EMBEDDING), field, vectors).replace_schema_metadata(None)


def _chunks(batches: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Small ones together, large ones in parts, no id twice in one."""
    held: list[pa.Table] = []
    have = 0
    for batch in chain(batches, [None]):
        while batch is not None and batch.num_rows:
            part = batch.slice(0, rows - have)
            batch = batch.slice(part.num_rows)
            held.append(part)
            have += part.num_rows
            if have == rows:
                yield _unique(pa.concat_tables(held))
                held, have = [], 0
    if held:
        yield _unique(pa.concat_tables(held))


def _unique(chunk: pa.Table) -> pa.Table:
    chunk = chunk.combine_chunks()
    counts = pc.value_counts(chunk.column(ID))
    twice = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(twice):
        raise ValueError(f"the id {twice[0]['values'].as_py()!r} is there {twice[0]['counts'].as_py()} times; "
                         "each row needs its own")  # fmt: skip
    return chunk


def matrix(vectors: pa.ChunkedArray | pa.FixedSizeListArray) -> Any:
    """float32 `[rows, dimensions]`."""
    if isinstance(vectors, pa.ChunkedArray):
        vectors = vectors.combine_chunks()
        if isinstance(vectors, pa.ChunkedArray):
            vectors = vectors.chunk(0)
    return vectors.flatten().to_numpy(zero_copy_only=False).reshape(len(vectors), vectors.type.list_size)


def payloads(chunk: pa.Table) -> list[dict[str, Any]]:
    """Each row without id, text and vector."""
    others: list[dict[str, Any]] = chunk.drop_columns(
        [name for name in (ID, TEXT, EMBEDDING) if name in chunk.schema.names]
    ).to_pylist()
    return others or [{} for _ in range(chunk.num_rows)]


def refuse_others(kept: Provenance | None, rows: Rows, place: str) -> None:
    """Raises where a place that was there before has vectors of another model, or does not say of which."""
    if kept is None:
        raise ValueError(
            f"{place} was there before, and does not say which model its vectors are of; name another, or remove it"
        )
    if not kept.agrees(rows.provenance):
        raise ValueError(
            f"{place} has vectors of {kept}; these are of {rows.provenance}, and cannot be compared with them: name another"
        )


def refuse_width(kept: int, rows: Rows, place: str) -> None:
    """Raises where a place has vectors of another width."""
    if kept != rows.dimensions:
        raise ValueError(f"{place} has vectors of {kept} dimensions; these have {rows.dimensions}")
