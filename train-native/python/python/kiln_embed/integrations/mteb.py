"""mteb's encoder and cross-encoder.

>>> import mteb
>>> from kiln_embed.integrations.mteb import KilnEncoder
>>> mteb.evaluate(KilnEncoder("sentence-transformers/all-MiniLM-L6-v2"), mteb.get_tasks(["STSBenchmark"]))
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta, ScoringFunction

from kiln_embed import Embedder, Reranker

if TYPE_CHECKING:
    from mteb.types import PromptType


def _meta(model: str, revision: str | None, **known: Any) -> ModelMeta:
    """What mteb keeps results under: the Hub id, or `kiln/` and the folder's name."""
    name, _, of_hub = model.partition("@")
    if name.count("/") != 1 or Path(model).exists():
        name, of_hub = f"kiln/{Path(model).resolve().name}", ""
    return ModelMeta.create_empty(
        overwrites={"name": name, "revision": revision or of_hub or "no_revision_available", **known}
    )


def _texts(batches: Any) -> list[str]:
    return [text for batch in batches for text in batch["text"]]


class KilnEncoder(AbsEncoder):
    """A text-embedding model as mteb evaluates it. The model's own prompts are chosen by mteb's rules: by the task, its
    kind, or whether the texts are queries or documents.

    Args:
        model_name: As `model` of `Embedder`, or an `Embedder`.
        revision: Taken by mteb's interface; a Hub id may have it after an `@`.
        device: As of `Embedder`.
        settings: Others of `Embedder`.
    """

    def __init__(
        self, model_name: Any = "kiln-mini", revision: str | None = None, *, device: str | None = None, **settings: Any
    ) -> None:
        if isinstance(model_name, Embedder):
            self.model = model_name
        else:
            name = f"{model_name}@{revision}" if revision else model_name
            self.model = Embedder(name, device=device or "auto", **settings)
        self.model_prompts = self.model.prompts
        self.mteb_model_meta = _meta(
            self.model.model,
            revision,
            max_tokens=self.model.max_seq_length,
            embed_dim=self.model.get_sentence_embedding_dimension(),
            similarity_fn_name=ScoringFunction(self.model.similarity_fn_name),
        )

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> Any:
        """Vectors of the texts that mteb gives."""
        prompt_name = self.get_prompt_name(task_metadata, prompt_type)
        how = {key: kwargs[key] for key in ("batch_size", "show_progress_bar") if kwargs.get(key) is not None}
        # As mteb has sentence-transformers do it.
        side = getattr(prompt_type, "value", prompt_type)
        if side == "query":
            return self.model.encode_query(_texts(inputs), prompt_name, **how)
        if side == "document":
            return self.model.encode_document(_texts(inputs), prompt_name, **how)
        return self.model.encode(_texts(inputs), prompt_name, **how)


class KilnCrossEncoder:
    """A reranker as mteb evaluates it.

    Args:
        model_name: As `model` of `Reranker`.
        revision: Taken by mteb's interface; a Hub id may have it after an `@`.
        device: As of `Reranker`.
        settings: Others of `Reranker`.
    """

    def __init__(
        self, model_name: str, revision: str | None = None, device: str | None = None, **settings: Any
    ) -> None:
        name = f"{model_name}@{revision}" if revision else model_name
        self.model = Reranker(name, device=device or "auto", **settings)
        self.mteb_model_meta = _meta(
            self.model.model, revision, max_tokens=self.model.max_length, model_type=["cross-encoder"]
        )

    def predict(
        self,
        inputs1: Any,
        inputs2: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> Any:
        """Scores of the pairs that mteb gives."""
        pairs = list(zip(_texts(inputs1), _texts(inputs2)))
        return np.asarray(self.model.predict(pairs), dtype=np.float32)
