"""Ray Data: a class for `map_batches`, of which each actor has one, and with it one model.

>>> from kiln_embed.integrations.ray import KilnEmbedder
>>> ds = ray.data.read_parquet("docs/").repartition(64)  # blocks, which are what actors share
>>> actors = ray.data.ActorPoolStrategy(size=4)
>>> ds = ds.map_batches(KilnEmbedder, compute=actors, num_cpus=2, fn_constructor_kwargs={"column": "text"})
>>> ds.write_parquet("vectors/")

An actor that dies is started again by Ray, and what it was at is computed again: the vectors are the same bits.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import ray
from ray.data.block import BlockAccessor

from kiln_embed._columns import ColumnEmbedder, use_threads


class KilnEmbedder(ColumnEmbedder):
    """Appends to each row the vector of its text, as a fixed-size list of float32; all else stays.

    It takes batches of every `batch_format` and returns Arrow tables; `"pyarrow"` spares a conversion.

    Args:
        column: Name of the column of texts.
        output: Name of the column of vectors.
        threads: Threads of each actor; None: as many as the CPUs that Ray gave it (`num_cpus`, 1 if nothing is said).
        settings: Those of `ColumnEmbedder`: `model`, `device`, `weights`, `max_length`, `prompt_name`, `prompt`,
            `normalize_embeddings`, `truncate_dim`, `batch_size`, `batch_tokens` and `nulls`.
    """

    def __init__(
        self, column: str = "text", output: str = "embedding", *, threads: int | None = None, **settings: Any
    ) -> None:
        if ray.is_initialized():
            context: Any = ray.get_runtime_context()
            use_threads(threads, otherwise=int(context.get_assigned_resources().get("CPU", 1)))
        else:
            use_threads(threads)
        super().__init__(column, output, **settings)

    def __call__(self, batch: Any) -> pa.Table:
        """The rows of a batch with their vectors."""
        if not isinstance(batch, pa.Table):
            # By Ray's own rules: tensors, objects and what else its batches have.
            batch = BlockAccessor.for_block(BlockAccessor.batch_to_block(batch)).to_arrow()
        return self.append(batch)
