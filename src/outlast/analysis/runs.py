"""Analyses of trained runs: every seed and checkpoint asked for, one table for each analysis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outlast.analysis.ablation import pathway_ablation
from outlast.analysis.anatomy import anatomy
from outlast.analysis.covariance import contrastive_covariance
from outlast.analysis.probe import key_probe, state_probe
from outlast.analysis.run_gradients import run_gradients
from outlast.analysis.sequences import LADDER, SEQUENCES, check_finite, nothing_to_see
from outlast.analysis.sharpness import sharpness
from outlast.analysis.token_filter import token_filter
from outlast.arguments import as_whole
from outlast.errors import OutlastError, bad_value, short_of_memory
from outlast.evaluation.ladder import check_ladder, out_of_reach, rungs
from outlast.models import build_model
from outlast.registry import suggest, tasks
from outlast.runs.analyses import Row, SeedStep
from outlast.runs.folder import RUN, has_file
from outlast.runs.kept import kept_steps, seeds_at
from outlast.runs.records import read_run
from outlast.tasks import Task
from outlast.workflow.load import load

#: each analysis by name; those of a run look at all its checkpoints
OF_MODELS: dict[str, Callable[..., list[Row]]] = {
    "anatomy": anatomy,
    "ablation": pathway_ablation,
    "state-probe": state_probe,
    "key-probe": key_probe,
    "sharpness": sharpness,
    "covariance": contrastive_covariance,
    "token-filter": token_filter,
}
OF_RUNS: dict[str, Callable[..., list[Row]]] = {"gradients": run_gradients}
ANALYSES = OF_MODELS | OF_RUNS


@dataclass(frozen=True)
class AnalysisSettings:
    """What is looked at.

    Args:
        ladder: Multiples of the training length.
        sequences: Sequences of each length.
        seeds: Of the run; None: all of them.
        steps: Of the checkpoints that were kept; none: the end of training, and for gradients all
            of them.
        toward: For gradients: the run whose last weights are the solution; None: the run itself.
    """

    ladder: tuple[float, ...] = LADDER
    sequences: int = SEQUENCES
    seeds: tuple[int, ...] | None = None
    steps: tuple[int, ...] = ()
    toward: Path | None = None

    def __post_init__(self) -> None:
        check_ladder("lengths", self.ladder)
        as_whole("sequences", self.sequences, 1)

    def record(self, name: str) -> dict[str, Any]:
        """As the table of an analysis keeps it; its rows say which seeds and steps."""
        if name in OF_RUNS:
            toward = None if self.toward is None else self.toward.resolve().name
            return {"sequences": self.sequences, "toward": toward}
        return {"ladder": list(self.ladder), "sequences": self.sequences}


def function_of(name: str) -> Callable[..., list[Row]]:
    """The analysis of this name."""
    if name not in ANALYSES:
        raise OutlastError(f"there is no analysis {name!r}{suggest(name, ANALYSES)}")
    return ANALYSES[name]


def left_out(folder: Path, settings: AnalysisSettings) -> list[str]:
    """In words, which lengths are out of reach of a run, and which seeds have no such step."""
    run = read_run(folder).spec
    task: Task = tasks.build(run.task)
    ceiling = build_model(run.model, task.vocabulary, task.classes).ceiling
    reasons = [(m, n, out_of_reach(task, n, ceiling)) for m, n in rungs(task, settings.ladder)]
    words = [f"left out: length {n:,} ({m:g} x), {why}" for m, n, why in reasons if why]
    seeds = _seeds(folder, settings)
    for step in dict.fromkeys(settings.steps):
        absent = [seed for seed in seeds if seed not in seeds_at(folder, step, run)]
        words += [
            f"left out: seed {seed} at step {step}, it did not switch then" for seed in absent
        ]
    return words


def seed_steps(folder: Path, name: str, settings: AnalysisSettings) -> list[SeedStep]:
    """The seeds and steps of a run that an analysis looks at.

    A step that was kept because of a switch has the seeds that switched then, and no others.
    """
    run, seeds = read_run(folder).spec, _seeds(folder, settings)
    if not settings.steps and name not in OF_RUNS:
        return [(seed, None) for seed in seeds]
    steps = dict.fromkeys(settings.steps or kept_steps(folder))
    present = {step: seeds_at(folder, step, run) for step in steps}
    return [(seed, step) for seed in seeds for step in steps if seed in present[step]]


def _seeds(folder: Path, settings: AnalysisSettings) -> tuple[int, ...]:
    seeds = read_run(folder).seeds
    for seed in settings.seeds or ():
        if seed not in seeds:
            raise bad_value("seeds", seed, f"seeds of {folder}: {', '.join(map(str, seeds))}")
    return seeds if settings.seeds is None else tuple(dict.fromkeys(settings.seeds))


def runs_beside(folder: Path, way: str) -> list[Path]:
    """For a run ``DESIGN-some`` and the way ``dat``: the run ``DESIGN-dat``, if it is there.

    A design may have a ``-`` in its name. The longest comes first.
    """
    home = folder.resolve()
    words = home.name.split("-")
    names = ["-".join([*words[:end], way]) for end in range(len(words) - 1, 0, -1)]
    return [home.parent / name for name in names if has_file(home.parent / name, RUN)]


def solution_beside(folder: Path, way: str) -> Path | None:
    """The first of `runs_beside` that has the model, the task and the seeds of the run.

    None stands for the run itself.
    """
    run = read_run(folder).spec
    for other in runs_beside(folder, way):
        spec = read_run(other).spec
        if (spec.model, spec.task) == (run.model, run.task) and set(run.seeds) <= set(spec.seeds):
            return None if other == folder.resolve() else other
    return None


def analyse_run(
    folder: Path,
    name: str,
    settings: AnalysisSettings,
    device: torch.device,
    on_seed: Callable[[str], None] | None = None,
) -> list[Row]:
    """The table of an analysis of a run; rows begin with run, seed and step. Nothing is written.

    `on_seed` is told, in words, what comes next. A table without a row is an error.
    """
    try:
        rows = _rows(folder, name, settings, device, on_seed or (lambda words: None))
    except (MemoryError, RuntimeError) as error:
        if not short_of_memory(error):
            raise
        raise OutlastError(
            f"the memory of {device} does not suffice for {name} of {folder}: take shorter lengths "
            f"or fewer sequences"
        ) from error
    if not rows:
        lengths = " ".join(f"{multiple:g}" for multiple in settings.ladder)
        raise nothing_to_see("lengths", lengths, f"one that is within reach of {folder}")
    return [{"run": folder.name, **row} for row in rows]


def _rows(
    folder: Path,
    name: str,
    settings: AnalysisSettings,
    device: torch.device,
    on_seed: Callable[[str], None],
) -> list[Row]:
    """The rows of all seeds and steps, without the name of the run."""
    function, record = function_of(name), read_run(folder)
    wanted = seed_steps(folder, name, settings)
    if settings.steps and not wanted:
        words = " ".join(map(str, settings.steps))
        raise nothing_to_see("steps", words, f"a step of which {folder} has one of these seeds")
    if name in OF_RUNS:
        on_seed(f"{folder.name}: {name}")
        seeds, steps = _seeds(folder, settings), tuple(dict.fromkeys(settings.steps)) or None
        batches = max(1, settings.sequences // record.settings.batch_size)
        return function(folder, device, seeds, steps, settings.toward, batches=batches)
    task, table = tasks.build(record.spec.task), list[Row]()
    for seed, step in wanted:
        which = f"seed {seed}" if step is None else f"seed {seed}, step {step}"
        on_seed(f"{folder.name}: {name}, {which}")
        model = load(folder, seed, step).to(device)
        check_finite(model, f"{folder}, {which},")
        rows = function(model, task, settings.ladder, settings.sequences)
        table += [{"seed": seed, "step": step, **row} for row in rows]
    return table
