"""What vectors were made with, which has to be the same for all that are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kiln_embed._embedder import Embedder

#: Under it stores, and columns of Arrow, keep it as JSON.
KEY = "kiln"


@dataclass(frozen=True)
class Provenance:
    """The model of vectors, and what of its settings changes them. It is the same where all but the names are."""

    #: What was named as the model.
    model: str
    #: A number for the model's files, precision and settings: `Embedder.fingerprint`.
    fingerprint: str
    #: What stands before each text.
    prompt: str = ""
    #: Whether vectors were divided by their norm though the model does not.
    normalized: bool = False

    @classmethod
    def of(
        cls,
        embedder: Embedder,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Provenance:
        """That of the vectors which `embedder.encode` gives with the same arguments."""
        if prompt is None:
            name = prompt_name if prompt_name is not None else embedder.default_prompt_name
            prompt = "" if name is None else embedder.prompts.get(name, "")
        return cls(
            embedder.model,
            embedder.fingerprint(truncate_dim),
            prompt,
            normalize_embeddings and not embedder.normalizes,
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Provenance:
        """Of what was kept: by `as_dict`, or by `kiln embed` in `_kiln/settings.json`."""
        kept = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        if not {"model", "fingerprint"} <= kept.keys():
            raise ValueError(f"{dict(values)!r} does not say which model vectors are of")
        return cls(**kept)

    def as_dict(self) -> dict[str, Any]:
        """To be kept as JSON."""
        return asdict(self)

    def agrees(self, other: Provenance) -> bool:
        """Whether vectors of both may stand side by side."""
        ours, theirs = self.as_dict(), other.as_dict()
        return all(ours[name] == theirs[name] for name in ours if name != "model")

    def __str__(self) -> str:
        said = f"{self.model} (fingerprint {self.fingerprint[:12]}"
        said += f", prompt {self.prompt!r}" if self.prompt else ""
        return said + (", normalized)" if self.normalized else ")")
