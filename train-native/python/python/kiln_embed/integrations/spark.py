"""Spark: a function for `mapInArrow`. Each Python worker loads the model once, and keeps it for its next tasks.

>>> from kiln_embed.integrations.spark import embed_batches, with_vectors
>>> df = spark.read.parquet("docs/")
>>> df.mapInArrow(embed_batches("text"), with_vectors(df.schema)).write.parquet("vectors/")
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

from kiln_embed._columns import ColumnEmbedder, use_threads

#: The models of this process, by their settings.
_loaded: dict[str, ColumnEmbedder] = {}


class _EmbedBatches:
    """What is sent to the workers: settings, and no model."""

    def __init__(self, threads: int | None, settings: dict[str, Any]) -> None:
        self.threads, self.settings = threads, settings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        embedder = self._embedder()
        for batch in batches:
            yield _listed(embedder.append(batch), embedder.output)

    def _embedder(self) -> ColumnEmbedder:
        key = repr(sorted(self.settings.items()))
        if key not in _loaded:
            task = TaskContext.get()
            use_threads(self.threads, otherwise=task.cpus() if task else None)
            _loaded[key] = ColumnEmbedder(**self.settings)
        return _loaded[key]


def _listed(batch: pa.RecordBatch, output: str) -> pa.RecordBatch:
    """The vectors as plain lists: Spark has none of a fixed size."""
    place = batch.schema.get_field_index(output)
    lists = batch.column(place).cast(pa.list_(pa.float32()))
    return batch.set_column(place, pa.field(output, lists.type), lists)


def embed_batches(
    column: str = "text", output: str = "embedding", *, threads: int | None = None, **settings: Any
) -> _EmbedBatches:
    """The function for `DataFrame.mapInArrow`, which appends to each row the vector of its text.

    Args:
        column: Name of the column of texts.
        output: Name of the column of vectors, `array<float>`.
        threads: Threads of each Python worker; None: `spark.task.cpus`.
        settings: Those of `ColumnEmbedder`: `model`, `device`, `weights`, `max_length`, `prompt_name`, `prompt`,
            `normalize_embeddings`, `truncate_dim`, `batch_size`, `batch_tokens` and `nulls`.
    """
    return _EmbedBatches(threads, {"column": column, "output": output, **settings})


def with_vectors(schema: StructType, output: str = "embedding") -> StructType:
    """The schema of the result, for `mapInArrow`: that of the rows, and the vectors."""
    return StructType([*schema.fields, StructField(output, ArrayType(FloatType()))])
