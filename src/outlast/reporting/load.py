"""Run folders and study folders as a report sees them. Nothing here writes.

Whatever is missing (no results yet, an arm not run) is a state. Whatever is damaged is an error
that names the file and the field (`runs/records.py`). Beside other arms, an arm with such a file is
left out, and knows why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    #: why tables of analyses cannot be read, by name; they are left out
    damaged: Mapping[str, str] = field(default_factory=dict)

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
    """One way of training in a study; ``run`` is None until it has been started.

    If a file of the run cannot be read, ``run`` is None too, and ``damage`` says why.
    """

    record: ArmRecord
    run: Run | None
    damage: str = ""

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
    """Each study folder as a study; all loose runs, those of grids too, together as one more.

    If no arm is left, what is wrong with the first is an error.
    """
    if not folders:
        raise RunFolderError("nothing to report on: give at least one run or study folder")
    studies: list[Study] = []
    loose: list[Path] = []
    for folder in folders:
        if has_file(folder, STUDY):
            studies.append(load_study(folder))
        elif has_file(folder, RUN):
            loose.append(folder)
        elif inside := _runs_of_grid(folder):
            loose += inside
        elif has_file(folder, SWEEP):
            raise no_runs_of_sweep(folder)
        else:
            raise RunFolderError(
                f"{folder}: neither a run folder ({RUN}) nor a study ({STUDY}), nor are there runs "
                f"in it"
            )
    studies += [_compare(loose)] if loose else []
    damage = [arm.damage for study in studies for arm in study.arms]
    if damage and all(damage):
        raise RunFolderError(damage[0])
    return tuple(studies)


def _runs_of_grid(folder: Path) -> list[Path]:
    """The runs in a folder, damaged ones too; one whose creation was killed is an error."""
    runs = grid_runs(folder, with_damaged=True)
    return runs if all(has_file(run, RUN) for run in runs) else grid_runs(folder)


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
        arms.append(Arm(arm, *_load(folder / arm.name)) if started else Arm(arm, None))
    return Study(record, tuple(arms))


def _load(folder: Path) -> tuple[Run | None, str]:
    """A run, or why it cannot be read."""
    try:
        return load_run(folder), ""
    except RunFolderError as error:
        return None, str(error)


def _compare(folders: list[Path]) -> Study:
    """Loose runs as a study: arm names are folder names, made distinct where they clash."""
    arms: list[Arm] = []
    loaded = [_load(folder) for folder in folders]
    bases = [folder.resolve().name for folder in folders]
    labels = [run.label if run else base for (run, _), base in zip(loaded, bases, strict=True)]
    for (run, damage), base, label in zip(loaded, bases, labels, strict=True):
        taken = {arm.name for arm in arms}
        name = next(n for n in (base, *(f"{base}-{i}" for i in range(2, 999))) if n not in taken)
        clear = label if labels.count(label) == 1 else f"{label} ({name})"
        arms.append(Arm(ArmRecord(name, clear), run, damage))
    title = labels[0] if len(folders) == 1 else f"{len(folders)} runs compared"
    return Study(StudyRecord(study="runs", title=title), tuple(arms))
