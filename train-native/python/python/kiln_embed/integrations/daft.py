"""Daft: a provider for `embed_text`.

>>> import daft
>>> from daft.functions import embed_text
>>> from kiln_embed.integrations.daft import KilnProvider
>>> df = daft.read_parquet("docs/")
>>> df = df.with_column("embedding", embed_text(df["text"], provider=KilnProvider(), concurrency=2))
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from daft import DataType
from daft.ai.protocols import TextEmbedder, TextEmbedderDescriptor
from daft.ai.provider import Provider
from daft.ai.typing import EmbeddingDimensions, UDFOptions

from kiln_embed._columns import use_threads
from kiln_embed._embedder import DEFAULT_MODEL, Embedder

#: What Daft itself does with `embed_text`'s options; `batch_size` is how many rows it hands over at once.
_OF_DAFT = ("batch_size", "concurrency", "max_retries", "num_gpus", "on_error")
#: Options of `Embedder`, and of its `encode`.
_OF_MODEL = ("device", "weights", "max_length")
_OF_CALL = ("prompt_name", "prompt", "normalize_embeddings", "batch_tokens")


class KilnProvider(Provider):
    """Embeds texts with Kiln, in Daft's own workers: nothing is sent anywhere.

    Args:
        name: Name of the provider in a session.
        options: Defaults of `embed_text`'s options: Daft's (`batch_size`, `concurrency`, `max_retries`, `on_error`),
            `Embedder`'s (`device`, `weights`, `max_length`), those of its `encode` (`prompt_name`, `prompt`,
            `normalize_embeddings`, `batch_tokens`), and `threads`, of each worker.

    `model` of `embed_text` is that of `Embedder`, kiln-mini if nothing is said, and has to be there on every machine;
    `dimensions` keeps the first ones.
    """

    def __init__(self, name: str = "kiln", **options: Any) -> None:
        self._name, self._options = name, _known(options)

    @property
    def name(self) -> str:
        """The provider's name."""
        return self._name

    def get_text_embedder(
        self, model: str | None = None, dimensions: int | None = None, **options: Any
    ) -> KilnTextEmbedderDescriptor:
        """What `embed_text` sends to Daft's workers."""
        return KilnTextEmbedderDescriptor(
            self._name, model or DEFAULT_MODEL, dimensions, {**self._options, **_known(options)}
        )


@dataclass
class KilnTextEmbedderDescriptor(TextEmbedderDescriptor):
    """A model by its name and settings; each worker loads it once."""

    provider: str
    model: str = DEFAULT_MODEL
    dimensions: int | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def get_provider(self) -> str:
        """Name of the provider that made it."""
        return self.provider

    def get_model(self) -> str:
        """What was named as the model."""
        return self.model

    def get_options(self) -> dict[str, Any]:
        """Options of `embed_text`."""
        return dict(self.options)

    def get_dimensions(self) -> EmbeddingDimensions:
        """Width of the vectors, for which the model is looked at."""
        return EmbeddingDimensions(size=self.load().get_sentence_embedding_dimension(), dtype=DataType.float32())

    def get_udf_options(self) -> UDFOptions:
        """How many workers, and what happens with errors."""
        # What is wrong with a text stays wrong.
        given = {"max_retries": 0, **self.options}
        return UDFOptions(**{name: value for name, value in given.items() if name in _OF_DAFT})

    def load(self) -> Embedder:
        """The model."""
        return Embedder(
            self.model,
            truncate_dim=self.dimensions,
            **{name: self.options[name] for name in _OF_MODEL if name in self.options},
        )

    def instantiate(self) -> KilnTextEmbedder:
        """Loads the model, in a worker."""
        use_threads(self.options.get("threads"))
        how = {name: self.options[name] for name in _OF_CALL if name in self.options}
        return KilnTextEmbedder(self.load(), how)


class KilnTextEmbedder(TextEmbedder):
    """The model of a worker."""

    def __init__(self, embedder: Embedder, how: dict[str, Any]) -> None:
        self.embedder, self.how = embedder, how

    def embed_text(self, text: list[str]) -> list[Any]:
        """Vectors of a batch of texts; Daft says in errors which column it is."""
        for row, one in enumerate(text):
            if not isinstance(one, str):
                what = "null" if one is None else f"{type(one).__name__} ({str(one)[:40]!r}), not a string"
                raise TypeError(f"the text in row {row} of a batch of {len(text)} is {what}")
        return list(self.embedder.encode(text, **self.how))


def _known(options: dict[str, Any]) -> dict[str, Any]:
    known = {*_OF_DAFT, *_OF_MODEL, *_OF_CALL, "threads"}
    unknown = sorted(options.keys() - known)
    if unknown:
        raise ValueError(f"Kiln has no option {unknown[0]!r}; it has {', '.join(sorted(known))}")
    return options
