"""What `kiln embed` wrote, row by row."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from kiln_embed._provenance import Provenance

#: Columns of the files.
ID, TEXT, EMBEDDING = "id", "text", "embedding"
#: Where `kiln embed` keeps what the files of an output were made of.
_OWN = "_kiln"
#: Under it a Parquet file's metadata have the same of that file.
_SETTINGS = b"kiln.settings"


@dataclass(frozen=True)
class _File:
    """A file of vectors."""

    #: Its path.
    path: str
    #: What rows without an id are named after.
    name: str
    #: How many rows there are, where that is known.
    rows: int | None = None


class Output:
    """What `kiln embed` wrote: the folder or prefix of many files, or one file.

    Of many, those count that are complete: they have their line in `_kiln/`. Rows without an id get one of their
    input's name and their number, `docs/a.txt#17`, which is the same in every run.

    Args:
        path: A folder, a file (`.parquet`, `.jsonl`, `.npy`), or an address of either that pyarrow knows (`s3://`,
            `gs://`, `abfs://`).
        shard: Only every N-th file from the I-th, as `(I, N)`: several processes may write one store.
        filesystem: One of pyarrow's file systems, where `path` alone does not say enough.

    Raises:
        FileNotFoundError: There is no such file, or none that is complete.
        ValueError: The files have vectors of two kinds, are not as long as they were, or do not say their model as
            `kiln embed` does.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, shard: tuple[int, int] = (0, 1), filesystem: fs.FileSystem | None = None
    ) -> None:
        self.path = os.fspath(path)
        if not 0 <= shard[0] < shard[1]:
            raise ValueError(f"shard {shard[0]}/{shard[1]} is none: the first is 0 of {shard[1]}")
        if filesystem is not None:
            self._files, place = filesystem, self.path
        elif "://" in self.path:
            self._files, place = fs.FileSystem.from_uri(self.path)
        else:
            self._files, place = fs.LocalFileSystem(), os.path.abspath(self.path)
        info = self._files.get_file_info(place)
        #: Which model the vectors are of; None for a file that does not say it, as `.jsonl` and `.npy` cannot.
        self.provenance: Provenance | None = None
        if info.type == fs.FileType.File:
            name = PurePosixPath(place).name
            if not name.endswith((".parquet", ".jsonl", ".npy")):
                raise ValueError(f"{self.path}: vectors are read from .parquet, .jsonl and .npy")
            if name.endswith(".parquet"):
                self.provenance = self._described(place)
            files = [_File(place, name)]
        else:
            files = self._complete(place)
        self.files = files[shard[0] :: shard[1]]

    def _described(self, place: str) -> Provenance | None:
        """What a Parquet file says of its model."""
        with self._files.open_input_file(place) as opened:
            kept = (pq.ParquetFile(opened).metadata.metadata or {}).get(_SETTINGS)
        try:
            return None if kept is None else Provenance.from_dict(json.loads(kept))
        except (TypeError, ValueError) as error:
            said = _SETTINGS.decode()
            raise ValueError(f"{self.path}: {said} is not what kiln embed writes ({error}); embed again") from None

    def _complete(self, place: str) -> list[_File]:
        """The files of a folder that have their line."""
        settings = f"{place}/{_OWN}/settings.json"
        try:
            kept = json.loads(self._read(settings))
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{self.path}: has no {_OWN}/settings.json, which kiln embed writes beside many files; for vectors from "
                "elsewhere, give batches of Arrow and provenance="
            ) from None
        self.provenance = Provenance.from_dict(kept)
        there = {info.path: info.size for info in self._files.get_file_info(fs.FileSelector(place, recursive=True))}
        files, kinds = [], set()
        for path in sorted(there):
            if not path.startswith(f"{place}/{_OWN}/") or not path.endswith(".json") or path == settings:
                continue
            line = json.loads(self._read(path))
            target = f"{place}/{line['output']}"
            if there.get(target) != line["output_bytes"]:
                raise ValueError(
                    f"{self.path}: {line['output']} has {there.get(target, 'no')} bytes instead of "
                    f"{line['output_bytes']}; run kiln embed again"
                )
            kinds.add((line["settings"], line["dimensions"]))
            files.append(_File(target, line["input"], line["rows"]))
        if len(kinds) > 1:
            raise ValueError(f"{self.path}: has vectors of {len(kinds)} kinds; embed into a new output")
        if not files:
            raise FileNotFoundError(f"{self.path}: no file is complete yet")
        return files

    def _read(self, path: str) -> bytes:
        with self._files.open_input_stream(path) as file:
            data: bytes = file.read()
            return data

    def batches(self, rows: int = 1024) -> Iterator[pa.RecordBatch]:
        """Columns `id`, `text` (where there are texts) and `embedding`, at most so many rows at a time."""
        for file in self.files:
            count = 0
            for batch in self._batches_of(file, rows):
                yield _with_ids(batch, file.name, count)
                count += batch.num_rows
            if file.rows not in (None, count):
                raise ValueError(f"{self.path}: {file.path} has {count} rows instead of {file.rows}")

    def _batches_of(self, file: _File, rows: int) -> Iterator[pa.RecordBatch]:
        if file.path.endswith(".parquet"):
            with self._files.open_input_file(file.path) as opened:
                yield from pq.ParquetFile(opened).iter_batches(batch_size=rows)
        elif file.path.endswith(".jsonl"):
            with self._files.open_input_stream(file.path) as opened:
                lines = map(json.loads, io.TextIOWrapper(opened, encoding="utf-8"))
                while some := list(islice(lines, rows)):
                    yield _of_lines(some)
        else:
            with self._files.open_input_file(file.path) as opened:
                yield from _of_npy(opened, file.path, rows)


def _of_lines(lines: list[dict[str, Any]]) -> pa.RecordBatch:
    width = len(lines[0][EMBEDDING])
    return pa.RecordBatch.from_pydict(
        {
            ID: pa.array([line.get(ID) for line in lines], pa.string()),
            TEXT: pa.array([line.get(TEXT) for line in lines], pa.string()),
            EMBEDDING: pa.array([line[EMBEDDING] for line in lines], pa.list_(pa.float32(), width)),
        }
    )


def _of_npy(file: pa.NativeFile, path: str, rows: int) -> Iterator[pa.RecordBatch]:
    """NumPy's header, and rows as they come."""
    version = np.lib.format.read_magic(file)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, columns_first, kind = read_header[version](file)
    if len(shape) != 2 or columns_first or kind != np.float32:
        raise ValueError(f"{path}: has {kind} of shape {shape}; vectors are float32 of shape (rows, dimensions)")
    for first in range(0, shape[0], rows):
        count = min(rows, shape[0] - first)
        values = np.frombuffer(file.read(count * shape[1] * 4), np.float32)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(values), shape[1])
        yield pa.RecordBatch.from_arrays([vectors], [EMBEDDING])


def _with_ids(batch: pa.RecordBatch, name: str, before: int) -> pa.RecordBatch:
    place = batch.schema.get_field_index(ID)
    made = [f"{name}#{before + row}" for row in range(batch.num_rows)]
    if place < 0:
        return pa.RecordBatch.from_arrays(
            [pa.array(made, pa.string()), *batch.columns], names=[ID, *batch.schema.names]
        )
    ids = batch.column(place)
    if not ids.null_count:
        return batch
    return batch.set_column(place, ID, pc.coalesce(ids.cast(pa.string()), pa.array(made, pa.string())))
