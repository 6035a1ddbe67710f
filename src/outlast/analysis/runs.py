"""Analyses of trained runs: every seed and checkpoint asked for, one table for each analysis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from outlast.analysis.ablation import pathway_ablation
from outlast.analysis.anatomy import anatomy
from outlast.analysis.covariance import contrastive_covariance
from outlast.analysis.probe import key_probe, state_probe
from outlast.analysis.run_gradients import run_gradients
from outlast.analysis.sequences import LADDER, SEQUENCES, check_finite
from outlast.analysis.sharpness import sharpness
from outlast.analysis.token_filter import token_filter
from outlast.arguments import as_whole
from outlast.errors import OutlastError, bad_value
from outlast.evaluation.ladder import check_ladder, out_of_reach, rungs
from outlast.models import build_model
from outlast.registry import suggest, tasks
from outlast.runs.analyses import Row
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

    def record(self) -> dict[str, Any]:
        """As a table keeps it."""
        return {**asdict(self), "toward": None if self.toward is None else self.toward.name}


def function_of(name: str) -> Callable[..., list[Row]]:
    """The analysis of this name."""
    if name not in ANALYSES:
        hint = suggest(name, ANALYSES)
        raise OutlastError(f"there is no analysis {name!r}{hint}: {' | '.join(ANALYSES)}")
    return ANALYSES[name]


def summary_of(name: str) -> str:
    """The first sentence of what an analysis says of itself."""
    return (function_of(name).__doc__ or "").strip().partition("\n")[0]


def lengths_left_out(folder: Path, settings: AnalysisSettings) -> list[str]:
    """In words, which of the lengths are out of reach of a run, and why."""
    run = read_run(folder).spec
    task: Task = tasks.build(run.task)
    ceiling = build_model(run.model, task.vocabulary, task.classes).ceiling
    reasons = [(m, n, out_of_reach(task, n, ceiling)) for m, n in rungs(task, settings.ladder)]
    return [f"left out: length {n:,} ({m:g} x), {why}" for m, n, why in reasons if why]


def analyse_run(
    folder: Path,
    name: str,
    settings: AnalysisSettings,
    device: torch.device,
    on_seed: Callable[[str], None] | None = None,
) -> list[Row]:
    """The table of an analysis of a run; rows begin with run, seed and step. Nothing is written.

    `on_seed` is told, in words, what comes next.
    """
    record = read_run(folder)
    seeds = record.seeds if settings.seeds is None else settings.seeds
    for seed in seeds:
        if seed not in record.seeds:
            accepted = f"seeds of {folder}: {', '.join(map(str, record.seeds))}"
            raise bad_value("seeds", seed, accepted)
    function = function_of(name)
    if name in OF_RUNS:
        if on_seed is not None:
            on_seed(f"{folder.name}: {name}")
        batches = max(1, settings.sequences // record.settings.batch_size)
        rows = function(
            folder, device, seeds, settings.steps or None, settings.toward, batches=batches
        )
        return [{"run": folder.name, **row} for row in rows]
    task, table = tasks.build(record.spec.task), list[Row]()
    for seed in seeds:
        for step in settings.steps or (None,):
            which = f"seed {seed}" if step is None else f"seed {seed}, step {step}"
            if on_seed is not None:
                on_seed(f"{folder.name}: {name}, {which}")
            model = load(folder, seed, step).to(device)
            check_finite(model, f"{folder}, {which},")
            rows = function(model, task, settings.ladder, settings.sequences)
            table += [{"run": folder.name, "seed": seed, "step": step, **row} for row in rows]
    return table
