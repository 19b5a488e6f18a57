"""A column of texts in, the same rows with a column of vectors out: what Ray, Daft and Spark have in common.

Needs pyarrow, which all of them bring.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from kiln_embed._embedder import DEFAULT_MODEL, Embedder, count
from kiln_embed._provenance import KEY, Provenance

if TYPE_CHECKING:
    Batch = TypeVar("Batch", pa.RecordBatch, pa.Table)

#: What rayon, whose threads Kiln uses, reads before it starts them.
_THREADS = "RAYON_NUM_THREADS"


def use_threads(threads: int | None, otherwise: int | None = None) -> None:
    """Says how many threads Kiln has in this process; it has to come before the first text is embedded.

    Args:
        threads: So many.
        otherwise: So many where `threads` is None and the environment says nothing.
    """
    if threads is not None:
        os.environ[_THREADS] = str(count(threads, "threads"))
    elif otherwise is not None:
        os.environ.setdefault(_THREADS, str(max(otherwise, 1)))


class ColumnEmbedder:
    """Appends to rows of Arrow a column with the vectors of their texts.

    Args:
        column: Name of the column of texts.
        output: Name of the column of vectors: fixed-size lists of float32.
        model: As of `Embedder`: `kiln-mini`, a folder, a `.kiln` file, or a Hub id. Each process loads it by itself, so
            that a path has to be there on every machine.
        device: As of `Embedder`.
        weights: As of `Embedder`.
        max_length: As of `Embedder`.
        prompt_name: Which of the model's prompts stands before each text; None: its default, if it has one.
        prompt: A prompt as it is.
        normalize_embeddings: Divide vectors by their norm even where the model does not.
        truncate_dim: Keep only the first dimensions.
        batch_size: Most texts of a batch on a GPU.
        batch_tokens: Most tokens of a batch, padding included; None: what suits the device.
        nulls: `error`, or `keep`: a null text gets a null vector.
    """

    def __init__(
        self,
        column: str = "text",
        output: str = "embedding",
        *,
        model: str | os.PathLike[str] = DEFAULT_MODEL,
        device: str = "auto",
        weights: str | None = None,
        max_length: int | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        nulls: Literal["error", "keep"] = "error",
    ) -> None:
        if nulls not in ("error", "keep"):
            raise ValueError(f"nulls must be 'error' or 'keep', not {nulls!r}")
        self.column, self.output, self.nulls = column, output, nulls
        self.embedder = Embedder(
            model, device=device, weights=weights, max_length=max_length, truncate_dim=truncate_dim
        )
        self.dimensions = self.embedder.get_sentence_embedding_dimension()
        self._how: dict[str, Any] = {
            "prompt_name": prompt_name,
            "prompt": prompt,
            "normalize_embeddings": normalize_embeddings,
            "batch_size": batch_size,
            "batch_tokens": batch_tokens,
        }
        self.provenance = Provenance.of(
            self.embedder, prompt_name=prompt_name, prompt=prompt, normalize_embeddings=normalize_embeddings
        )
        self.field = pa.field(
            output,
            pa.list_(pa.float32(), self.dimensions),
            metadata={KEY: json.dumps(self.provenance.as_dict())},
        )

    def append(self, batch: Batch) -> Batch:
        """The rows with their vectors.

        Raises:
            ValueError: There is no such column of texts, or one of the vectors' name is there already.
            TypeError: The column has no strings, or a null where `nulls` is `error`.
        """
        if batch.num_columns == 0 and batch.num_rows == 0:
            return batch
        if self.output in batch.schema.names:
            raise ValueError(f"column {self.output!r} is there already; name another for the vectors with output=")
        return batch.append_column(self.field, self.vectors(batch, self.column))

    def vectors(self, batch: pa.RecordBatch | pa.Table, column: str) -> pa.FixedSizeListArray:
        """The vectors alone, of any column; raises as `append` does."""
        names = batch.schema.names
        if names.count(column) != 1:
            here = ", ".join(map(repr, names)) or "none"
            raise ValueError(f"there is {'no' if column not in names else 'more than one'} column {column!r}; "
                             f"columns are {here}")  # fmt: skip
        return self._vectors(self._texts(batch, column))

    def _texts(self, batch: pa.RecordBatch | pa.Table, column: str) -> pa.Array | pa.ChunkedArray:
        texts = batch.column(column)
        if pa.types.is_dictionary(texts.type):
            texts = texts.cast(texts.type.value_type)
        if texts.null_count and self.nulls == "error":
            row = pc.index(texts.is_null(), True).as_py()
            raise TypeError(
                f"column {column!r} is null in row {row} of a batch of {batch.num_rows}{_seen(batch, row)}; "
                "leave such rows out, or set nulls='keep'"
            )
        strings = pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)
        if not strings and texts.type != pa.string_view():
            if pa.types.is_null(texts.type):
                return texts.cast(pa.string())
            first = str(texts[0].as_py())[:40] if len(texts) else ""
            raise TypeError(f"column {column!r} has {texts.type}, not strings; its first row is {first!r}")
        return texts

    def _vectors(self, texts: pa.Array | pa.ChunkedArray) -> pa.FixedSizeListArray:
        if isinstance(texts, pa.ChunkedArray):
            texts = texts.combine_chunks()
        vectors = pa.array(self.embedder.encode_arrow(texts.drop_null(), **self._how))
        vectors = pa.FixedSizeListArray.from_arrays(vectors.flatten(), type=self.field.type)
        if texts.null_count:
            # Where a text is, the number of those before it; else null, which takes a null.
            places = pc.subtract(pc.cumulative_sum(pc.cast(texts.is_valid(), pa.int64())), 1)
            vectors = vectors.take(pc.if_else(texts.is_valid(), places, pa.scalar(None, pa.int64())))
        return vectors


def _seen(batch: pa.RecordBatch | pa.Table, row: int) -> str:
    """What else is in a row, so that people find it where batches have no number."""
    seen = [
        f"{name}={str(batch.column(place)[row].as_py())[:40]!r}"
        for place, name in enumerate(batch.schema.names)
        if not pa.types.is_nested(batch.schema.types[place]) and batch.column(place)[row].is_valid
    ]
    return f" ({', '.join(seen[:3])})" if seen else ""
