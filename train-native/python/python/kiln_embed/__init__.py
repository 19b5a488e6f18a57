"""Text embeddings with Kiln: one model file, no PyTorch, no network for the first vector.

>>> from kiln_embed import Embedder
>>> embedder = Embedder()                       # kiln-mini, which is inside the package
>>> embedder.encode(["a boat on the river", "a ship at sea"]).shape
(2, 384)

`Embedder` embeds texts, `Reranker` ranks them, `Index` searches vectors; `train`, `evaluate` and `quantize` are the
commands of the same names. The command `kiln` is in the package too. Adapters to other libraries are in
`kiln_embed.integrations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kiln_embed._commands import Run, Step, evaluate, quantize, run, train
    from kiln_embed._embedder import Embedder, Explanation
    from kiln_embed._index import Hits, Index
    from kiln_embed._native import KilnError, Vectors, __version__
    from kiln_embed._reranker import Reranker

__all__ = [
    "Embedder",
    "Explanation",
    "Hits",
    "Index",
    "KilnError",
    "Reranker",
    "Run",
    "Step",
    "Vectors",
    "__version__",
    "evaluate",
    "quantize",
    "run",
    "train",
]

# Loaded when they are asked for: the command `kiln` and programs that only import this wait neither for NumPy nor
# for the rest.
_HOMES = {
    "Embedder": "_embedder",
    "Explanation": "_embedder",
    "Hits": "_index",
    "Index": "_index",
    "KilnError": "_native",
    "Reranker": "_reranker",
    "Run": "_commands",
    "Step": "_commands",
    "Vectors": "_native",
    "__version__": "_native",
    "evaluate": "_commands",
    "quantize": "_commands",
    "run": "_commands",
    "train": "_commands",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
