"""Run folders and study folders as a report sees them. Nothing here writes.

Whatever is missing (no results yet, an arm not run) is a state. Whatever is damaged is an error
that names the file and the field (`runs/records.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from outlast.errors import RunFolderError
from outlast.runs.folder import RESULTS, RUN, STUDY, SWEEP, has_file
from outlast.runs.grids import grid_runs, no_runs_of_sweep
from outlast.runs.records import (
    EventLine,
    MetricLine,
    ResultRow,
    Results,
    RunRecord,
    read_metrics,
    read_results,
)
from outlast.runs.records import read_run as read_record
from outlast.runs.study import ArmRecord, StudyRecord, read_study

Series = dict[int, dict[int, float]]  # seed -> step -> value

ENDS = ("parked", "succeeded")  # events after which a seed is not trained any more


@dataclass(frozen=True)
class Run:
    """One run folder; ``results`` is None until it has been tested."""

    folder: Path
    record: RunRecord
    losses: dict[str, Series] = field(default_factory=dict)
    probes: dict[float, Series] = field(default_factory=dict)
    events: tuple[EventLine, ...] = ()
    last_step: int = 0
    results: Results | None = None

    @property
    def label(self) -> str:
        return " ".join(self.record.label.split()) or self.folder.name

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.record.seeds

    @property
    def rows(self) -> tuple[ResultRow, ...]:
        return () if self.results is None else self.results.rows

    @cached_property
    def parked(self) -> dict[int, int]:
        """Seeds whose loss was not finite any more, and the step they were left at."""
        parked = [event for event in self.events if event.event == "parked"]
        tested = {row["seed"]: row["parked"] for row in self.rows if "parked" in row}
        return tested | {event.seed: event.details.get("since", event.step) for event in parked}

    @cached_property
    def nan_shares(self) -> dict[tuple[int, str | None, float], float]:
        """Shares of answers with NaN or all -inf logits, by seed, variant, multiple; none of 0."""
        return {
            (row["seed"], row["variant"], row["multiple"]): row["nan"]
            for row in self.rows
            if row.get("nan", 0) > 0
        }

    @property
    def diverged(self) -> bool:
        """Whether no seed is sound: every one was parked."""
        return bool(self.seeds) and self.parked.keys() >= set(self.seeds)

    @cached_property
    def succeeded(self) -> dict[int, int]:
        """Seeds that were good enough to be stopped, and the step they were left at."""
        tested = {row["seed"]: row["succeeded"] for row in self.rows if "succeeded" in row}
        return tested | {e.seed: e.step for e in self.events if e.event == "succeeded"}

    @property
    def unfinished(self) -> tuple[int, int] | None:
        """The step a run is at (that was tested, if any) and its last one; None at its end.

        A run whose every seed was parked or has succeeded is at its end.
        """
        steps = self.record.settings.steps
        tested_at = None if self.results is None else self.results.step
        step = self.last_step if tested_at is None else tested_at
        unknown = bool(self.rows) and not step  # tested, and nothing says when
        if step >= steps or unknown:
            return None
        resting = {e.seed for e in self.events if e.event in ENDS and e.step <= step}
        resting |= {row["seed"] for row in self.rows if any(name in row for name in ENDS)}
        return None if resting and resting >= set(self.seeds) else (step, steps)


@dataclass(frozen=True)
class Arm:
    """One way of training in a study; ``run`` is None until it has been started."""

    record: ArmRecord
    run: Run | None

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def label(self) -> str:
        return self.record.label or (self.run.label if self.run else self.name)


@dataclass(frozen=True)
class Study:
    """A question and its arms; loose run folders form a study without claims."""

    record: StudyRecord
    arms: tuple[Arm, ...]

    @property
    def title(self) -> str:
        return self.record.title or self.record.study


def read(folders: Sequence[Path]) -> tuple[Study, ...]:
    """Each study folder as a study; all loose runs, those of grids too, together as one more."""
    if not folders:
        raise RunFolderError("nothing to report on: give at least one run or study folder")
    studies: list[Study] = []
    loose: list[Run] = []
    for folder in folders:
        if has_file(folder, STUDY):
            studies.append(load_study(folder))
        elif has_file(folder, RUN):
            loose.append(load_run(folder))
        elif inside := grid_runs(folder):
            loose += map(load_run, inside)
        elif has_file(folder, SWEEP):
            raise no_runs_of_sweep(folder)
        else:
            raise RunFolderError(
                f"{folder}: neither a run folder ({RUN}) nor a study ({STUDY}), nor are there runs "
                f"in it"
            )
    return (*studies, *([_compare(loose)] if loose else []))


def load_run(folder: Path) -> Run:
    """One run folder, with its metrics and results."""
    record = read_record(folder)
    losses: dict[str, Series] = {}
    probes: dict[float, Series] = {}
    events: list[EventLine] = []
    last_step = 0
    for line in read_metrics(folder):
        last_step = max(last_step, line.step)
        if not isinstance(line, MetricLine):
            events.append(line)
            continue
        for part, loss in (line.loss or {}).items():
            if loss is not None:
                losses.setdefault(part, {}).setdefault(line.seed, {})[line.step] = loss
        for multiple, accuracy in (line.probe or {}).items():
            probes.setdefault(float(multiple), {}).setdefault(line.seed, {})[line.step] = accuracy
    path = folder / RESULTS
    results = read_results(path) if path.is_file() else None
    return Run(folder, record, losses, probes, tuple(events), last_step, results)


def load_study(folder: Path) -> Study:
    """One study folder with the run folders of those arms that have one."""
    record = read_study(folder)
    arms = []
    for arm in record.arms:
        started = has_file(folder / arm.name, RUN)
        arms.append(Arm(arm, load_run(folder / arm.name) if started else None))
    return Study(record, tuple(arms))


def _compare(runs: list[Run]) -> Study:
    """Loose runs as a study: arm names are folder names, made distinct where they clash."""
    arms: list[Arm] = []
    labels = [run.label for run in runs]
    for run in runs:
        base = run.folder.resolve().name
        taken = {arm.name for arm in arms}
        name = next(n for n in (base, *(f"{base}-{i}" for i in range(2, 999))) if n not in taken)
        label = run.label if labels.count(run.label) == 1 else f"{run.label} ({name})"
        arms.append(Arm(ArmRecord(name, label), run))
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} runs compared"
    return Study(StudyRecord(study="runs", title=title), tuple(arms))
