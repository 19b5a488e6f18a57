"""Daft: `embed_text`, as Daft's own, by Kiln, in Daft's own workers.

>>> from kiln_embed.integrations.daft import embed_text
>>> df = daft.read_parquet("docs/*.parquet")
>>> df = df.with_column("embedding", embed_text(df["text"], concurrency=2))
>>> df.write_parquet("vectors/")
"""

from __future__ import annotations

import os
from typing import Any

import daft
import pyarrow as pa

from kiln_embed._columns import ColumnEmbedder, use_threads
from kiln_embed._embedder import DEFAULT_MODEL, Embedder


class _Worker:
    """What each of Daft's workers has one of."""

    def __init__(self, threads: int | None, settings: dict[str, Any]) -> None:
        use_threads(threads)
        self.embedder = ColumnEmbedder(**settings)

    def embed(self, text: daft.Series) -> pa.FixedSizeListArray:
        column = text.name()
        return self.embedder.vectors(pa.table({column: text.to_arrow()}), column)


def embed_text(
    text: daft.Expression,
    *,
    model: str | os.PathLike[str] = DEFAULT_MODEL,
    concurrency: int | None = None,
    rows: int | None = None,
    cpus: float | None = None,
    threads: int | None = None,
    truncate_dim: int | None = None,
    **settings: Any,
) -> daft.Expression:
    """Vectors of a column of texts: fixed-size lists of float32.

    A worker loads the model once. What is wrong with a text stays wrong: errors are raised, and nothing tried again.

    Args:
        text: The column.
        model: As of `Embedder`. Its width is asked for here, and each worker loads it: a path has to be there on every
            machine.
        concurrency: Workers; None: what Daft finds.
        rows: Most rows that a worker gets at once; None: what Daft finds.
        cpus: CPUs that Daft reserves for each worker.
        threads: Threads of each worker's process; None: as many as the machine has cores, and so with several workers on
            one machine say it.
        truncate_dim: Keep only the first dimensions.
        settings: Others of `ColumnEmbedder`: `device`, `weights`, `max_length`, `prompt_name`, `prompt`,
            `normalize_embeddings`, `batch_size`, `batch_tokens` and `nulls`.
    """
    of_model = {name: settings[name] for name in ("device", "weights", "max_length") if name in settings}
    width = Embedder(model, truncate_dim=truncate_dim, **of_model).get_sentence_embedding_dimension()
    embed = daft.method.batch(
        return_dtype=daft.DataType.fixed_size_list(daft.DataType.float32(), width), batch_size=rows
    )(_Worker.embed)
    worker = daft.cls(
        # Its own class, whose vectors have this width.
        type("KilnEmbedder", (_Worker,), {"__call__": embed}),
        cpus=cpus,
        max_concurrency=concurrency,
        max_retries=0,
        name_override="kiln_embed",
    )
    settings = {"model": os.fspath(model), "truncate_dim": truncate_dim, **settings}
    return worker(threads, settings)(text)
