"""Training, evaluation and compression: commands of `kiln` as functions."""

from __future__ import annotations

import json
import numbers
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Union

from kiln_embed import _native
from kiln_embed._embedder import count, find_model

StrPath = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Step:
    """One step of a training run."""

    #: Stage of the recipe, from 0.
    stage: int
    #: Step of the stage, from 1.
    step: int
    #: Mean loss of the step.
    loss: float
    #: Learning rate.
    lr: float
    #: Norm of the gradient before clipping.
    grad_norm: float
    #: Seconds that the step took.
    seconds: float
    #: Texts in the step.
    texts: int
    #: Tokens in the step, padding not counted.
    tokens: int
    #: Scores by evaluation set, where an evaluation followed the step.
    scores: dict[str, float] = field(default_factory=dict)
    #: Steps of all stages together.
    total_steps: int = 0


@dataclass(frozen=True)
class Run:
    """What a training run left behind."""

    #: Folder of the model, for `Embedder`.
    model: Path
    #: Folder of the LoRA adapters, where there are some.
    adapter: Path | None
    #: Folder of the best model, where the recipe evaluates.
    best: Path | None
    #: Step of the run that gave it.
    best_step: int | None
    #: Its score.
    best_score: float | None
    #: The report, a page with curves.
    report: Path
    #: Whether this process wrote all that; of several that train together the first does.
    written: bool
    #: Every step.
    steps: list[Step] = field(repr=False)


def train(
    recipe: StrPath | Mapping[str, Any],
    output: StrPath,
    *,
    data_dir: StrPath | None = None,
    device: str = "auto",
    resume: bool | Literal["auto"] = False,
    overwrite: bool = False,
    checkpoint_every: int = 500,
    keep: int = 2,
    save_every: int = 0,
    skip_bad_rows: bool = False,
    show_progress_bar: bool = False,
    on_step: Callable[[Step], object] | None = None,
    **overrides: Any,
) -> Run:
    """Trains a model by a recipe, as `kiln train` does: also as one of several processes, where `RANK`, `WORLD_SIZE`,
    `MASTER_ADDR` and `KILN_SECRET` are set (by torchrun or Ray Train, say), of which the first writes.

    Args:
        recipe: The name of a shipped recipe (`kiln recipes` lists them), a TOML file, or its contents as a mapping.
        output: Folder for the model, checkpoints, metrics and report.
        data_dir: Folder that the recipe's paths are relative to; None: the recipe's own, or the current one.
        device: `auto`, `cpu`, `vulkan[:n]` or `cuda[:n]`.
        resume: Go on from the newest checkpoint in the output folder; with `"auto"` begin where there is none.
        overwrite: Replace the models of an earlier run in the output folder.
        checkpoint_every: Steps between checkpoints.
        keep: Checkpoints to keep.
        save_every: Also keep the model every so many steps, in the output folder's `steps/`; 0: do not.
        skip_bad_rows: Skip rows that cannot be read, instead of stopping.
        show_progress_bar: Say on standard error how far it is.
        on_step: Called after each step, in the thread that called `train`. An exception ends the training behind a
            checkpoint, and is raised.
        overrides: Fields of the recipe: `seed=3`, `stage__1__lr=1e-4` or `**{"stage.1.lr": 1e-4}`.

    Raises:
        KeyboardInterrupt: Ctrl-C; a checkpoint was saved, from which `resume=True` goes on.
        KilnError: The recipe, its data or the output folder is not as it should be; the error says what to do.

    >>> run = train("nv-embed-small", "nv", stage__1__steps=20, on_step=lambda step: print(step.loss))
    >>> Embedder(run.model)
    """
    if on_step is not None and not callable(on_step):
        raise TypeError(f"on_step must be callable, not {type(on_step).__name__}")
    if isinstance(save_every, bool) or not isinstance(save_every, int) or save_every < 0:
        raise ValueError(f"save_every must be 0 or a number of steps, not {save_every!r}")
    if isinstance(resume, str) and resume != "auto":
        raise ValueError(f'resume must be True, False or "auto", not {resume!r}')
    changes = [f"{name.replace('__', '.')}={_toml(value, name)}" for name, value in overrides.items()]
    told = None if on_step is None else lambda numbers: on_step(Step(**numbers))
    with tempfile.TemporaryDirectory(prefix="kiln-") as scratch:
        if isinstance(recipe, Mapping):
            path = Path(scratch, "recipe.toml")
            path.write_text("\n".join(f"{_key(key)} = {_toml(value, key)}" for key, value in recipe.items()) + "\n", "utf-8")
            recipe, data_dir = path, data_dir if data_dir is not None else ""
        found = _native.train(
            os.fspath(recipe),
            output,
            changes,
            data_dir,
            device,
            "auto" if resume == "auto" else "yes" if resume else "no",
            bool(overwrite),
            count(checkpoint_every, "checkpoint_every") or 1,
            count(keep, "keep") or 1,
            save_every,
            bool(skip_bad_rows),
            bool(show_progress_bar),
            told,
        )
    steps = [Step(**numbers) for numbers in found.pop("steps")]
    folders = {name: _path(found.pop(name)) for name in ("model", "adapter", "best", "report")}
    return Run(**folders, **found, steps=steps)  # type: ignore[arg-type]


def _several(value: str | Iterable[str]) -> list[str]:
    """A text alone is one of its kind, not a list of letters."""
    return [value] if isinstance(value, str) else list(value)


def evaluate(
    model: StrPath,
    data: StrPath | None = None,
    task: str | None = None,
    *,
    suite: StrPath | None = None,
    only: str | Iterable[str] = (),
    output: StrPath | None = None,
    device: str = "auto",
    weights: str | None = None,
    truncate_dim: int | None = None,
    reranker: StrPath | None = None,
    show_progress_bar: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Scores a model as mteb defines its tasks, as `kiln eval` does.

    Args:
        model: As of `Embedder`.
        data: Data of `task`: a file (.jsonl, .csv, .tsv, .parquet), a BEIR folder, or `hub:owner/name`. With
            `suite`, the folder that the suite's paths are relative to.
        task: Kind of task that `data` holds: `retrieval`, `sts`, `classification`, ...
        suite: A TOML file, or the name of a shipped suite, in the place of `task`.
        only: Run only this task of the suite, or these.
        output: Folder of results; an interrupted evaluation goes on there.
        device: As of `Embedder`.
        weights: As of `Embedder`.
        truncate_dim: Keep only so many dimensions.
        reranker: Rank with this cross-encoder.
        show_progress_bar: Say on standard error how far it is.
        options: Any other option of `kiln eval` by its name: `split="dev"`, `query_prompt="query: "`.

    Returns:
        For one task its scores, for a suite those of all tasks, as `kiln eval --json` prints them.
    """
    arguments = _options(
        model=find_model(model),
        data=data,
        task=task,
        suite=suite,
        only=",".join(_several(only)) or None,
        output=output,
        weights=weights,
        dimensions=count(truncate_dim, "truncate_dim"),
        reranker=reranker,
        **options,
    )
    found = _run_json(["eval", "--device", device, *arguments], show_progress_bar)
    if not isinstance(found, dict):
        raise _native.KilnError("`kiln eval` gave no result; please report it")
    return found


def quantize(
    model: StrPath,
    output: StrPath,
    scheme: str = "int8",
    *,
    method: str = "rtn",
    calibration: StrPath | None = None,
    tensor: str | Iterable[str] = (),
    device: str = "auto",
    overwrite: bool = False,
    show_progress_bar: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Quantizes a model to int8, int4 or FP8, as `kiln quantize` does.

    Args:
        model: As of `Embedder`; one that is not quantized yet.
        output: Folder, or file ending in .kiln, to write to.
        scheme: `int8`, `int4`, `fp8-e4m3` or `fp8-e5m2`, each with an optional block size (`:32`, `:64`, `:128`,
            `:channel`).
        method: `rtn`, round to nearest, or `gptq`, which needs `calibration`.
        calibration: File of texts like those that the model will see.
        tensor: Schemes of tensors by pattern, one or several: `*embeddings*=int8:64`; the last match wins.
        device: As of `Embedder`.
        overwrite: Replace an earlier output of Kiln's.
        show_progress_bar: Say on standard error how far it is.
        options: Any other option of `kiln quantize` by its name: `error_budget=0.01`.

    Returns:
        What was written: bytes, tensors, and the cosines between vectors of the result and of the full model.
    """
    arguments = _options(
        model=find_model(model),
        output=output,
        scheme=scheme,
        method=method,
        calibration=calibration,
        tensor=_several(tensor),
        overwrite=bool(overwrite),
        **options,
    )
    found = _run_json(["quantize", "--device", device, *arguments], show_progress_bar)
    if not isinstance(found, dict):
        raise _native.KilnError("`kiln quantize` gave no result; please report it")
    return found


def run(command: str, *arguments: StrPath, show_progress_bar: bool = False, **options: Any) -> Any:
    """Any other command of `kiln` in this process: what it prints with `--json`.

    >>> run("inspect", model="kiln-mini.kiln")
    """
    return _run_json([*command.split(), *_options(**options), *arguments], show_progress_bar)


def _run_json(arguments: Iterable[StrPath], show_progress_bar: bool) -> Any:
    quiet = [] if show_progress_bar else ["--quiet"]
    # Texts may hold what Python takes for other ends of lines.
    lines = _native.call(["kiln", *(os.fspath(one) for one in arguments), *quiet]).split("\n")
    results = [json.loads(line) for line in lines if line]
    return results[0] if len(results) == 1 else results


def _options(**options: Any) -> list[str]:
    """Options of a command line: None and False are left out, True is a flag, lists repeat theirs."""
    arguments: list[str] = []
    for name, value in options.items():
        option = "--" + name.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            arguments.append(option)
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(one, numbers.Integral):
                one = int(one)
            elif isinstance(one, numbers.Real):
                one = float(one)
            if not isinstance(one, (str, int, float, os.PathLike)):
                raise TypeError(f"{name} must be str, a number or a path, not {type(one).__name__}")
            # One argument, so that a value may begin with a dash.
            arguments.append(f"{option}={os.fspath(one) if isinstance(one, os.PathLike) else one}")
    return arguments


def _path(path: Any) -> Path | None:
    return None if path is None else Path(path)


def _toml(value: Any, name: str) -> str:
    """A value as TOML writes it, in one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    # NumPy's numbers, too, which show themselves as np.float64(0.5).
    if isinstance(value, numbers.Integral):
        return repr(int(value))
    if isinstance(value, numbers.Real):
        return repr(float(value))
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the character DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(one, f'{name}.{key}')}" for key, one in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(one, name) for one in value) + "]"
    raise TypeError(f"{name} is {type(value).__name__}, which no recipe holds")


def _key(key: Any) -> str:
    return json.dumps(str(key), ensure_ascii=False)
