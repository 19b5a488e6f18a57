"""What the compiled module has; the other modules of this package are its only callers."""

import os
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

__version__: str

class KilnError(RuntimeError): ...

def main(arguments: Sequence[str]) -> int: ...
def call(arguments: Sequence[str | os.PathLike[str]]) -> str: ...
def train(
    recipe: str,
    output: str | os.PathLike[str],
    changes: list[str],
    data_dir: str | os.PathLike[str] | None,
    device: str,
    resume: str,
    overwrite: bool,
    checkpoint_every: int,
    keep: int,
    save_every: int,
    skip_bad_rows: bool,
    progress: bool,
    on_step: Callable[[dict[str, Any]], object] | None,
) -> dict[str, Any]: ...
@final
class Vectors:
    """Vectors as an Arrow array: fixed-size lists of float32, which `pyarrow.array`, polars, DuckDB 2 and LanceDB take
    without a copy."""

    @property
    def dimensions(self) -> int: ...
    def __len__(self) -> int: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...

@final
class TextModel:
    def __new__(
        cls,
        model: str,
        device: str,
        weights: str | None,
        pooling: str | None,
        attention: str | None,
        max_length: int | None,
        progress: bool,
    ) -> TextModel: ...
    def fingerprint(self, dimensions: int | None) -> str: ...
    @property
    def dimensions(self) -> int: ...
    @property
    def max_length(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def on_gpu(self) -> bool: ...
    @property
    def normalizes(self) -> bool: ...
    @property
    def parameters(self) -> int: ...
    @property
    def prompts(self) -> dict[str, str]: ...
    @property
    def default_prompt_name(self) -> str | None: ...
    @property
    def similarity_fn_name(self) -> str: ...
    def embed(
        self,
        texts: object,
        name: str,
        prompt_name: str | None,
        prompt: str | None,
        dimensions: int | None,
        normalize: bool,
        batch_tokens: int | None,
        progress: bool,
    ) -> NDArray[np.float32]: ...
    def embed_arrow(
        self,
        texts: object,
        name: str,
        prompt_name: str | None,
        prompt: str | None,
        dimensions: int | None,
        normalize: bool,
        batch_tokens: int | None,
        progress: bool,
    ) -> Vectors: ...
    def tokenize(
        self, texts: object, prompt_name: str | None, prompt: str | None
    ) -> list[tuple[list[int], bool]]: ...
    def explain(self, text: str, prompt_name: str | None, prompt: str | None) -> dict[str, Any]: ...

@final
class PairModel:
    def __new__(
        cls,
        model: str,
        device: str,
        weights: str | None,
        instruction: str | None,
        max_length: int | None,
        progress: bool,
    ) -> PairModel: ...
    @property
    def max_length(self) -> int: ...
    @property
    def device(self) -> str: ...
    def scores(
        self, queries: object, texts: object, activate: bool, batch_tokens: int | None, progress: bool
    ) -> NDArray[np.float32]: ...
    def activated(self, logits: list[float]) -> list[float]: ...

@final
class Index:
    def __new__(cls, dimensions: int, precision: str) -> Index: ...
    @staticmethod
    def load(path: str | os.PathLike[str]) -> Index: ...
    @staticmethod
    def from_bytes(bytes: bytes) -> Index: ...
    def to_bytes(self) -> bytes: ...
    def save(self, path: str | os.PathLike[str], overwrite: bool) -> None: ...
    def add(self, vectors: NDArray[np.float32]) -> int: ...
    def swap_remove(self, row: int) -> None: ...
    def vector(self, row: int) -> NDArray[np.float32]: ...
    def search(
        self, queries: NDArray[np.float32], k: int, rescore: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]: ...
    def __len__(self) -> int: ...
    @property
    def dimensions(self) -> int: ...
    @property
    def precision(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
