"""Run folders and study folders, read into plain records. Nothing here writes.

Whatever is missing (no results yet, an arm not run) is a state; whatever is damaged is a
`RunFolderError` that names the file and the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from outlast.errors import RunFolderError
from outlast.reporting.records import Record, read_lines, read_record
from outlast.runs import RUN, STUDY, grid_runs

Series = dict[int, dict[int, float]]  # seed -> step -> value

ENDS = ("parked", "succeeded")  # events after which a seed is not trained any more


@dataclass(frozen=True)
class Row:
    """One seed at one length; ``exact`` and ``answers`` are None where it could not be tested."""

    seed: int
    variant: str | None
    length: float
    multiple: float
    tokens: int | None
    exact: dict[str, float] | None
    answers: dict[str, float] | None
    reason: str | None
    ended: bool = False  # the seed was parked or had succeeded


@dataclass(frozen=True)
class Event:
    """Something that happened to a seed while training, such as the switch to phase 2."""

    step: int
    seed: int
    name: str
    converged: bool | None
    since: int | None = None


@dataclass(frozen=True)
class Run:
    """One run folder. ``rows`` is None until it has been evaluated, at step ``tested_at``."""

    folder: Path
    about: dict[str, Any]
    label: str
    task: str
    model: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    auxiliary: tuple[str, ...]
    length: float
    chance: dict[str, float]
    losses: dict[str, Series] = field(default_factory=dict)
    probes: dict[float, Series] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    last_step: int = 0
    rows: tuple[Row, ...] | None = None
    sequences: int | None = None
    tested_at: int | None = None

    @property
    def parked(self) -> dict[int, int]:
        """Seeds whose loss was not finite any more, and the step they were left at."""
        return {
            e.seed: e.step if e.since is None else e.since
            for e in self.events
            if e.name == "parked"
        }

    @property
    def diverged(self) -> bool:
        """Whether no seed is sound: every one was parked."""
        return bool(self.seeds) and self.parked.keys() >= set(self.seeds)

    @property
    def succeeded(self) -> dict[int, int]:
        """Seeds that were good enough to be stopped, and the step they were left at."""
        return {e.seed: e.step for e in self.events if e.name == "succeeded"}

    @property
    def unfinished(self) -> tuple[int, int] | None:
        """The step a run is at (that was tested, if any) and its last one; None at its end.

        A run whose every seed was parked or has succeeded is at its end.
        """
        settings = self.about.get("settings")
        steps = settings.get("steps") if isinstance(settings, dict) else None
        at = self.last_step if self.tested_at is None else self.tested_at
        unknown = bool(self.rows) and not at  # tested, and nothing says when
        if not isinstance(steps, int) or at >= steps or unknown:
            return None
        rest = {e.seed for e in self.events if e.name in ENDS and e.step <= at}
        rest |= {row.seed for row in self.rows or () if row.ended}
        return None if rest and rest >= set(self.seeds) else (at, steps)


@dataclass(frozen=True)
class Claim:
    """A sentence with a number in it, and the band in which that number should lie."""

    text: str
    arm: str
    versus: str | None
    part: str
    multiple: float
    statistic: str
    low: float | None
    high: float | None
    source: str
    variant: str | None
    given: str | None = None


@dataclass(frozen=True)
class Arm:
    """One way of training in a study; ``run`` is None until it has been started."""

    name: str
    label: str
    group: str | None
    run: Run | None


@dataclass(frozen=True)
class Study:
    """A question and its arms; loose run folders form a study without claims."""

    name: str
    title: str
    question: str
    scale: str | None
    command: str | None
    arms: tuple[Arm, ...]
    claims: tuple[Claim, ...]


def read(folders: Sequence[Path]) -> tuple[Study, ...]:
    """Each study folder as a study; all loose runs, those of grids too, together as one more."""
    paths = [Path(folder) for folder in folders]
    if not paths:
        raise RunFolderError("nothing to report on: give at least one run or study folder")
    studies: list[Study] = []
    loose: list[Run] = []
    for path in paths:
        if (path / STUDY).is_file():
            studies.append(read_study(path))
        elif (path / RUN).is_file():
            loose.append(read_run(path))
        elif inside := grid_runs(path):
            loose += map(read_run, inside)
        else:
            raise RunFolderError(
                f"{path}: neither a run folder ({RUN}) nor a study ({STUDY}), nor are there runs "
                f"in it"
            )
    return (*studies, *([_compare(loose)] if loose else []))


def read_run(folder: Path) -> Run:
    """One run folder."""
    about = read_record(folder / RUN)
    # the record spells out every default; what a person wants to read is the short form
    shown = about.record("shown") if "shown" in about.data else about
    run = Run(
        folder=folder,
        about=about.data,
        label=about.text("label", folder.name),
        task=shown.text("task", ""),
        model=shown.text("model", ""),
        methods=tuple(str(method) for method in shown.items("methods")),
        seeds=about.whole_numbers("seeds"),
        auxiliary=tuple(str(part) for part in about.items("auxiliary")),
        length=about.number("length"),
        chance=about.numbers("chance") or {},
    )
    return _with_results(_with_metrics(run))


def read_study(folder: Path) -> Study:
    """One study folder with the run folders of those arms that have one."""
    study = read_record(folder / STUDY)
    arms = tuple(_arm(folder, record) for record in study.records("arms"))
    title = study.text("title", study.text("study", folder.name))
    return Study(
        name=study.text("study", folder.name),
        title=title,
        question=study.text("question", ""),
        scale=study.optional("scale"),
        command=study.optional("command"),
        arms=arms,
        claims=tuple(_claim(record) for record in study.records("claims")),
    )


def _arm(folder: Path, record: Record) -> Arm:
    name = record.text("name")
    if name in {"", ".", ".."} or "/" in name or "\\" in name:
        raise record.error(f"arm name {name!r} is not the name of a subfolder")
    run = read_run(folder / name) if (folder / name / RUN).is_file() else None
    label = record.optional("label") or (run.label if run else name)
    return Arm(name, label, record.optional("group"), run)


def _claim(record: Record) -> Claim:
    return Claim(
        text=record.text("text"),
        arm=record.text("arm"),
        versus=record.optional("versus"),
        part=record.text("part", "joint"),
        multiple=record.number("multiple"),
        statistic=record.text("statistic", "mean"),
        low=record.optional_number("low"),
        high=record.optional_number("high"),
        source=record.text("source", ""),
        variant=record.optional("variant"),
        given=record.optional("given"),
    )


def _compare(runs: list[Run]) -> Study:
    """Loose runs as a study: arm names are folder names, made distinct where they clash."""
    arms: list[Arm] = []
    labels = [run.label for run in runs]
    for run in runs:
        base = run.folder.resolve().name
        taken = {arm.name for arm in arms}
        name = next(n for n in (base, *(f"{base}-{i}" for i in range(2, 999))) if n not in taken)
        label = run.label if labels.count(run.label) == 1 else f"{run.label} ({name})"
        arms.append(Arm(name, label, None, run))
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} runs compared"
    return Study("runs", title, "", None, None, tuple(arms), ())


def _with_metrics(run: Run) -> Run:
    losses: dict[str, Series] = {}
    probes: dict[float, Series] = {}
    events: list[Event] = []
    last = 0
    for line in read_lines(run.folder / "metrics.jsonl"):
        step, seed = int(line.number("step")), int(line.number("seed"))
        last = max(last, step)
        if "event" in line.data:  # an event's other fields are its method's own business
            converged = line.data.get("converged")
            known = converged if isinstance(converged, bool) else None
            since = line.data.get("since")
            begun = since if isinstance(since, int) else None
            events.append(Event(step, seed, line.text("event"), known, begun))
            continue
        for part, loss in (line.numbers("loss") or {}).items():
            losses.setdefault(part, {}).setdefault(seed, {})[step] = loss
        for multiple, accuracy in (line.numbers("probe") or {}).items():
            at = line.as_number(multiple, "probe")
            probes.setdefault(at, {}).setdefault(seed, {})[step] = accuracy
    return replace(run, losses=losses, probes=probes, events=tuple(events), last_step=last)


def _with_results(run: Run) -> Run:
    path = run.folder / "results.json"
    if not path.is_file():
        return run
    results = read_record(path)
    rows = tuple(_row(record) for record in results.records("rows"))
    sequences, step = results.optional_number("sequences"), results.optional_number("step")
    return replace(
        run,
        rows=rows,
        sequences=None if sequences is None else int(sequences),
        tested_at=None if step is None else int(step),
    )


def _row(record: Record) -> Row:
    tokens = record.optional_number("tokens")
    return Row(
        seed=int(record.number("seed")),
        variant=record.optional("variant"),
        length=record.number("length"),
        multiple=record.number("multiple"),
        tokens=None if tokens is None else int(tokens),
        exact=record.numbers("exact"),
        answers=record.numbers("answers"),
        reason=record.optional("reason"),
        ended=any(record.data.get(name) is not None for name in ENDS),
    )
