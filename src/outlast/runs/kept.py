"""Weights that were kept along the way: a file for each step, beside the last checkpoint.

::

    run/checkpoints/00000000.safetensors    the start
    run/checkpoints/00000500.safetensors    all seeds at step 500
    run/checkpoints/00000650.safetensors    the seeds that switched at step 650, and no others

A file is a checkpoint without the optimiser: the weights, their average where one is kept, and the
plain state of that step, with which the controls of the step are known. The weights of the last
step are in the run's own checkpoint alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from outlast.errors import RunFolderError
from outlast.runs.checkpoint import (
    AVERAGE,
    WEIGHTS,
    TrainingState,
    load_checkpoint,
    load_state,
    read_checkpoint,
    write_checkpoint,
)
from outlast.runs.folder import CHECKPOINT, has_file, kept_file, kept_files
from outlast.runs.spec import RunSpec


def is_kept(name: str) -> bool:
    """Whether a tensor of a checkpoint is kept along the way: weights and their average are."""
    return name.startswith(WEIGHTS) or name == AVERAGE


def save_kept(
    folder: Path, tensors: Mapping[str, Tensor], state: TrainingState, seeds: Sequence[int]
) -> None:
    """Keep the weights of some seeds, of all that a run's tensors and state have."""
    rows = [state.run["seeds"].index(seed) for seed in seeds]
    weights = {name: tensor[rows] for name, tensor in tensors.items() if is_kept(name)}
    write_checkpoint(kept_file(folder, state.step), weights, state.of_seeds(rows, seeds))


def load_kept(
    folder: Path,
    step: int,
    run: RunSpec,
    seeds: Sequence[int] | None = None,
    wanted: Callable[[str], bool] = is_kept,
) -> tuple[dict[str, Tensor], TrainingState]:
    """Tensors and state of a step, of some seeds or of all that were kept.

    A step that was not kept is an error that says which were.
    """
    require_step(folder, step, run)
    path = kept_files(folder).get(step)
    if path is None:
        rows = None if seeds is None else [run.seeds.index(seed) for seed in seeds]
        tensors, state = load_checkpoint(folder, wanted, rows, run)
        return tensors, state if rows is None else state.of_seeds(rows, seeds or ())
    held = kept_seeds(path, run)
    absent = [seed for seed in seeds or () if seed not in held]
    if absent:
        others = ", ".join(map(str, held))
        raise RunFolderError(
            f"{path} has no seed {absent[0]}: it has those that switched, {others}"
        )
    chosen = held if seeds is None else tuple(seeds)
    rows = [held.index(seed) for seed in chosen]
    tensors, state = read_checkpoint(path, wanted, rows, replace(run, seeds=held))
    if state.step != step:
        raise RunFolderError(f"{path} is of step {state.step}, not {step}")
    return tensors, state.of_seeds(rows, chosen)


def require_step(folder: Path, step: int, run: RunSpec) -> None:
    """Refuse a step that was not kept; the error says which were."""
    if step in kept_files(folder):
        return
    last = load_state(folder, run).step if has_file(folder, CHECKPOINT) else None
    if last != step:
        raise RunFolderError(f"{folder} has no weights of step {step}: {_words(folder, last)}")


def seeds_at(folder: Path, step: int, run: RunSpec) -> tuple[int, ...]:
    """The seeds whose weights of a step were kept; all, if the step has no file of its own."""
    path = kept_files(folder).get(step)
    return run.seeds if path is None else kept_seeds(path, run)


def kept_seeds(path: Path, run: RunSpec) -> tuple[int, ...]:
    """The seeds whose weights a file has."""
    _, state = read_checkpoint(path, wanted=lambda name: False)
    held = state.run.get("seeds")
    if not isinstance(held, list) or not set(map(str, held)) <= set(map(str, run.seeds)):
        seeds = ", ".join(map(str, run.seeds))
        raise RunFolderError(f"{path} is of another run: its seeds are {held}, this run's {seeds}")
    return tuple(held)


def kept_steps(folder: Path) -> list[int]:
    """The steps whose weights a folder has, that of its last checkpoint included."""
    steps = set(kept_files(folder))
    if has_file(folder, CHECKPOINT):
        steps.add(load_state(folder).step)
    return sorted(steps)


def _words(folder: Path, last: int | None) -> str:
    """Which steps there are."""
    kept = ", ".join(map(str, kept_files(folder)))
    words = [
        f"kept are those of {kept}" if kept else "none were kept (--keep-checkpoints every=500)"
    ]
    return "; ".join(words if last is None else [*words, f"the last checkpoint is of step {last}"])
