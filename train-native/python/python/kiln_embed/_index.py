"""`Index`: exact search over vectors in memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from kiln_embed import _native
from kiln_embed._embedder import count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


class Hits(NamedTuple):
    """What a search found, the best first: `[k]` for one query, `[queries, k]` for several."""

    #: Rows of the index, int64.
    rows: NDArray[np.int64]
    #: Inner products with the query, float32: cosines where vectors have length 1.
    scores: NDArray[np.float32]


class Index:
    """Vectors in memory and exact search among them, by inner product.

    Args:
        dimensions: Width of the vectors.
        precision: How they are stored: `f32`; `int8`, a quarter of the memory; `binary`, a bit a dimension, whose
            best are scored again with the query's own numbers; `binary+int8`, bits to find candidates and int8 to
            score them.

    >>> index = Index(2)
    >>> index.add([[1, 0], [0, 1]])
    >>> index.search([0.9, 0.1], k=1)
    Hits(rows=array([0]), scores=array([0.9], dtype=float32))

    Many threads may search at once. Used with `with`, it is closed at the end, which gives the memory back.
    """

    def __init__(self, dimensions: int, precision: str = "f32") -> None:
        self._native = _native.Index(count(dimensions, "dimensions") or 0, precision)

    @classmethod
    def from_vectors(cls, vectors: ArrayLike, precision: str = "f32") -> Index:
        """An index of some vectors `[rows, dimensions]`."""
        rows = _rows(vectors, "vectors")
        index = cls(rows.shape[1], precision)
        index.add(rows)
        return index

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Index:
        """Reads a file that `save` wrote.

        Raises:
            FileNotFoundError: There is none.
            KilnError: It is no index, damaged, or of a later version.
        """
        return cls._of(_native.Index.load(path))

    @classmethod
    def _of(cls, native: _native.Index) -> Index:
        index = cls.__new__(cls)
        index._native = native
        return index

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Writes a file, as a whole or not at all.

        Raises:
            FileExistsError: There is one, and it is not to be overwritten.
        """
        self._native.save(path, bool(overwrite))

    def add(self, vectors: ArrayLike) -> range:
        """Adds a vector `[dimensions]` or several `[rows, dimensions]`, all or none, and returns their rows.

        Raises:
            ValueError: Another width, numbers that are not finite, or a vector of length 0; the error says which.
        """
        rows = _rows(vectors, "vectors")
        first = self._native.add(rows)
        return range(first, first + len(rows))

    def search(self, queries: ArrayLike, k: int = 10, rescore: int = 4) -> Hits:
        """The k rows with the largest inner products.

        Args:
            queries: A vector `[dimensions]` or several `[queries, dimensions]`.
            k: Rows for each query; fewer where the index has fewer.
            rescore: Times k rows of the binary forms are scored again.
        """
        vectors = _rows(queries, "queries")
        rows, scores = self._native.search(vectors, count(k, "k") or 0, count(rescore, "rescore") or 0)
        if _dimensions(queries) == 1:
            return Hits(rows[0], scores[0])
        return Hits(rows, scores)

    def vector(self, row: int) -> NDArray[np.float32]:
        """The vector of a row, as it is stored."""
        return self._native.vector(self._row(row))

    def swap_remove(self, row: int) -> None:
        """Removes a row; the last row takes its place."""
        self._native.swap_remove(self._row(row))

    def _row(self, row: int) -> int:
        if isinstance(row, bool) or not hasattr(row, "__index__"):
            raise TypeError(f"row must be int, not {type(row).__name__}")
        number, rows = row.__index__(), len(self)
        if not -rows <= number < rows:
            raise IndexError(f"no row {number} in an index of {rows} rows")
        return number + rows if number < 0 else number

    @property
    def dimensions(self) -> int:
        """Width of the vectors."""
        return self._native.dimensions

    @property
    def precision(self) -> str:
        """How vectors are stored."""
        return self._native.precision

    @property
    def nbytes(self) -> int:
        """Memory of the vectors, in bytes."""
        return self._native.nbytes

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._native.closed

    def close(self) -> None:
        """Gives the memory back; whatever is asked afterwards is a ValueError."""
        self._native.close()

    def __len__(self) -> int:
        return len(self._native)

    def __enter__(self) -> Index:
        len(self)  # refuses a closed one
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "Index(closed)"
        return f"Index({self.dimensions}, {self.precision!r}, rows={len(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._native.to_bytes())


def _rebuild(kind: type[Index], data: bytes) -> Index:
    return kind._of(_native.Index.from_bytes(data))


def _dimensions(vectors: Any) -> int:
    import numpy as np

    return np.ndim(vectors)


def _rows(vectors: Any, name: str) -> NDArray[np.float32]:
    """Vectors as float32 `[rows, dimensions]` in one piece, without a copy where they are that already."""
    import numpy as np

    try:
        array = np.asarray(vectors)
    except ValueError:
        raise ValueError(f"{name} must be rows of one width") from None
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must be numbers, not an array of {array.dtype}")
    if array.ndim not in (1, 2):
        raise ValueError(f"{name} must be a vector or rows of vectors, not an array of shape {array.shape}")
    rows = array.reshape(1, -1) if array.ndim == 1 else array
    return np.ascontiguousarray(rows, dtype=np.float32)
