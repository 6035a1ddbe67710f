"""Analyses of trained runs: every seed and checkpoint asked for, one table for each analysis."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from outlast.analysis.ablation import pathway_ablation
from outlast.analysis.covariance import contrastive_covariance
from outlast.analysis.examples import anatomy_with_examples
from outlast.analysis.probe import FIT_SEQUENCES, key_probe, state_probe
from outlast.analysis.run_gradients import run_gradients
from outlast.analysis.scoring import check_lengths
from outlast.analysis.seed_processes import SeedProcesses
from outlast.analysis.sequences import (
    LADDER,
    SEQUENCES,
    NothingToSeeError,
    NotJoinedError,
    check_finite,
    memory_needed,
    not_joined,
    nothing_to_see,
    require_memory,
)
from outlast.analysis.sharpness import sharpness
from outlast.analysis.token_filter import token_filter
from outlast.arguments import as_whole
from outlast.errors import OutlastError, RunFolderError, bad_value, short_of_memory
from outlast.evaluation.ladder import out_of_reach, rungs
from outlast.mixers.lstm import LSTM
from outlast.models import build_model
from outlast.models.model import Model
from outlast.processes import ProcessDiedError
from outlast.registry import suggest, tasks
from outlast.runs.analyses import Row, SeedStep
from outlast.runs.checkpoint import load_state
from outlast.runs.folder import CHECKPOINT, RUN, has_file, kept_files
from outlast.runs.kept import kept_steps, require_step, seeds_at
from outlast.runs.records import read_run
from outlast.runs.spec import RunSpec, seed_words
from outlast.tasks import Task
from outlast.workflow.load import load

#: each analysis by name; those of a run look at all its checkpoints
OF_MODELS: dict[str, Callable[..., list[Row]]] = {
    "anatomy": anatomy_with_examples,
    "ablation": pathway_ablation,
    "state-probe": state_probe,
    "key-probe": key_probe,
    "sharpness": sharpness,
    "covariance": contrastive_covariance,
    "token-filter": token_filter,
}
OF_RUNS: dict[str, Callable[..., list[Row]]] = {"gradients": run_gradients}
ANALYSES = OF_MODELS | OF_RUNS
#: sequences of each length for analyses that make a pass for each of many changes of the model
FEWER = {"ablation": 128, "token-filter": 64}
#: the fewest sequences of an analysis, where one is too few: half of them are for a fit
FEWEST = {"covariance": 2}
#: analyses that fit a probe, on sequences of their own
PROBING = ("anatomy", "state-probe", "key-probe")


@dataclass(frozen=True)
class AnalysisSettings:
    """What is looked at.

    Args:
        ladder: Multiples of the training length.
        sequences: Sequences of each length; None: 256, 128 for ablation, 64 for token-filter.
        seeds: Of the run; None: all of them.
        steps: Of the checkpoints that were kept; none: the end of training, and for gradients all
            of them.
        toward: For gradients: the run whose last weights are the solution; None: the run itself.
    """

    ladder: tuple[float, ...] = LADDER
    sequences: int | None = None
    seeds: tuple[int, ...] | None = None
    steps: tuple[int, ...] = ()
    toward: Path | None = None

    def __post_init__(self) -> None:
        check_lengths("lengths", self.ladder)
        if self.sequences is not None:
            as_whole("sequences", self.sequences, 1)

    def sequences_of(self, name: str) -> int:
        """How many sequences of each length an analysis looks at."""
        return FEWER.get(name, SEQUENCES) if self.sequences is None else self.sequences

    def check_sequences(self, name: str) -> None:
        """Refuse sequences that are too few for an analysis."""
        fewest, sequences = FEWEST.get(name, 1), self.sequences_of(name)
        if sequences < fewest:
            raise NothingToSeeError(f"--sequences {sequences}: {name} needs {fewest} or more")

    def record(self, name: str) -> dict[str, Any]:
        """As the table of an analysis keeps it; its rows say which seeds and steps."""
        if name in OF_RUNS:
            toward = None if self.toward is None else self.toward.resolve().name
            return {"sequences": self.sequences_of(name), "toward": toward}
        return {"ladder": list(self.ladder), "sequences": self.sequences_of(name)}


def function_of(name: str) -> Callable[..., list[Row]]:
    """The analysis of this name."""
    if name not in ANALYSES:
        raise OutlastError(f"there is no analysis {name!r}{suggest(name, ANALYSES)}")
    return ANALYSES[name]


def left_out(folder: Path, names: Collection[str], settings: AnalysisSettings) -> list[str]:
    """In words, which lengths are out of reach of a run, and which seeds have no such step.

    Lengths are told if one of the analyses has lengths. It is an error if none is within reach.
    """
    run = read_run(folder).spec
    task: Task = tasks.build(run.task)
    ceiling = build_model(run.model, task.vocabulary, task.classes).ceiling
    lengths = rungs(task, settings.ladder) if any(name in OF_MODELS for name in names) else []
    reasons = [(m, n, out_of_reach(task, n, ceiling)) for m, n in lengths]
    beyond = [f"length {n:,} ({m:g} x), {why}" for m, n, why in reasons if why]
    if beyond and len(beyond) == len(lengths):
        raise _beyond_reach(folder, settings, f"; {beyond[0]}")
    words = [f"left out: {each}" for each in beyond]
    seeds = _seeds(folder, settings)
    for step in dict.fromkeys(settings.steps):
        absent = [seed for seed in seeds if seed not in seeds_at(folder, step, run)]
        words += [
            f"left out: seed {seed} at step {step}, it did not switch then" for seed in absent
        ]
    return words


def seed_steps(folder: Path, name: str, settings: AnalysisSettings) -> list[SeedStep]:
    """The seeds and steps of a run that an analysis looks at; weights that it lacks are an error.

    A step that was kept because of a switch has the seeds that switched then, and no others. With
    too few sequences an analysis has nothing to see.
    """
    settings.check_sequences(name)
    run, seeds = read_run(folder).spec, _seeds(folder, settings)
    for step in settings.steps:
        require_step(folder, step, run)
    if not settings.steps or (name in OF_RUNS and settings.toward is None):
        _require_end(folder, run, name, settings)
    if not settings.steps and name not in OF_RUNS:
        return [(seed, None) for seed in seeds]
    steps = dict.fromkeys(settings.steps or kept_steps(folder))
    present = {step: seeds_at(folder, step, run) for step in steps}
    return [(seed, step) for seed in seeds for step in steps if seed in present[step]]


def _require_end(folder: Path, run: RunSpec, name: str, settings: AnalysisSettings) -> None:
    """Refuse a run without its last checkpoint; the error says what can be analysed instead.

    If steps were asked for, it is the analysis alone that has nothing to see.
    """
    kept = kept_files(folder)
    if has_file(folder, CHECKPOINT) or not kept:
        load_state(folder, run)
        return
    absent = f"{folder} has no {CHECKPOINT}, which has the weights of the end of training"
    if name in OF_RUNS and settings.steps:
        raise NothingToSeeError(
            f"{absent}: give another run, toward whose weights it is (--toward)"
        )
    steps = ", ".join(map(str, kept))
    raise RunFolderError(
        f"{absent}. The weights of steps {steps} were kept: --steps {max(kept)} analyses them"
    )


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


@dataclass
class Findings:
    """The rows of some seeds, and which seeds and steps are left out.

    Args:
        rows: Of the table.
        diverged: In words, the seeds whose weights are not finite.
        waiting: The seeds and steps whose attention has not joined yet.
    """

    rows: list[Row] = field(default_factory=list)
    diverged: list[str] = field(default_factory=list)
    waiting: list[SeedStep] = field(default_factory=list)

    @property
    def left_out(self) -> list[str]:
        """In words, what is left out; all attention that waits is one line."""
        waiting = [str(not_joined(seeds_and_steps(self.waiting)))] if self.waiting else []
        return [*self.diverged, *waiting]


def seeds_and_steps(pairs: Sequence[SeedStep]) -> str:
    """Seeds and their steps in few words: ``seeds 0-3 at steps 0, 50 and seed 2 at step 80``."""
    seeds_of: dict[int | None, list[int]] = {}
    for seed, step in pairs:
        seeds_of.setdefault(step, []).append(seed)
    steps_of: dict[tuple[int, ...], list[int]] = {}
    for step, seeds in seeds_of.items():
        steps = steps_of.setdefault(tuple(sorted(seeds)), [])
        steps += [] if step is None else [step]
    words = []
    for several, steps in steps_of.items():
        at = f" at step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}" if steps else ""
        words.append(f"seed{'s' * (len(several) > 1)} {seed_words(several)}{at}")
    return " and ".join(words)


def analyse_run(
    folder: Path,
    name: str,
    settings: AnalysisSettings,
    device: torch.device,
    on_words: Callable[[str], None] | None = None,
    processes: SeedProcesses | None = None,
) -> list[Row]:
    """The table of an analysis of a run; rows begin with run, seed and step. Nothing is written.

    A seed whose weights are not finite is left out, and so are seeds and steps whose attention has
    not joined yet. `on_words` is told so. A table without a row is an error. Several seeds may go
    side by side in `processes`. What takes more memory than is free, in all processes together, is
    refused before any of it is done.
    """
    wanted = seed_steps(folder, name, settings)
    if settings.steps and not wanted:
        words = " ".join(map(str, settings.steps))
        raise nothing_to_see("steps", words, f"a step of which {folder} has one of these seeds")
    seeds = list(dict.fromkeys(seed for seed, _ in wanted))
    try:
        if len(seeds) > 1:
            beside = processes or SeedProcesses(1)
            findings = _side_by_side(folder, name, settings, seeds, device, beside)
        else:
            require_memory(_memory(folder, name, settings, device), device)
            findings = rows_of_seeds(folder, name, settings, device)
    except (MemoryError, RuntimeError) as error:
        was_killed = isinstance(error, ProcessDiedError) and error.was_killed
        if not (short_of_memory(error) or was_killed):
            raise
        estimate = f" ({error})" if type(error) is MemoryError and str(error) else ""
        raise OutlastError(
            f"the memory of {device} does not suffice for {name} of {folder}: take shorter lengths "
            f"or fewer sequences{estimate}"
        ) from error
    if not findings.rows and findings.left_out:
        raise NothingToSeeError("; ".join(findings.left_out))
    if not findings.rows:
        raise _beyond_reach(folder, settings)
    for words in findings.left_out:
        if on_words is not None:
            on_words(words)
    return [{"run": folder.name, **row} for row in findings.rows]


def _beyond_reach(folder: Path, settings: AnalysisSettings, why: str = "") -> NothingToSeeError:
    lengths = " ".join(f"{multiple:g}" for multiple in settings.ladder)
    return nothing_to_see("lengths", lengths, f"one that is within reach of {folder}{why}")


def _side_by_side(
    folder: Path,
    name: str,
    settings: AnalysisSettings,
    seeds: list[int],
    device: torch.device,
    processes: SeedProcesses,
) -> Findings:
    """The rows of all seeds, one job a seed."""
    task = _task(folder)
    lengths = [task.tokens(length) for _, length in rungs(task, settings.ladder)]
    tokens = settings.sequences_of(name) * sum(lengths) * len(seeds)
    jobs = [
        (rows_of_seeds, (folder, name, replace(settings, seeds=(seed,)), device)) for seed in seeds
    ]
    findings, memory = Findings(), _memory(folder, name, settings, device)
    for of_seed in processes.run(jobs, tokens, memory, device):
        findings.rows += of_seed.rows
        findings.diverged += of_seed.diverged
        findings.waiting += of_seed.waiting
    if name in OF_RUNS:  # step by step, as training went
        findings.rows.sort(key=lambda row: row["step"])  # type: ignore[arg-type,return-value]
    return findings


def _memory(folder: Path, name: str, settings: AnalysisSettings, device: torch.device) -> int:
    """About how many bytes an analysis of one seed takes; gradients read no long sequences."""
    if name in OF_RUNS:
        return 0
    task = _task(folder)
    model = build_model(read_run(folder).spec.model, task.vocabulary, task.classes)
    lengths = [
        length
        for _, length in rungs(task, settings.ladder)
        if out_of_reach(task, length, model.ceiling) is None
    ]
    fit_sequences = FIT_SEQUENCES if name in PROBING else 0
    return memory_needed(model, task, lengths, settings.sequences_of(name), device, fit_sequences)


def rows_of_seeds(
    folder: Path, name: str, settings: AnalysisSettings, device: torch.device
) -> Findings:
    """The rows of all seeds and steps, without the name of the run, one after the other."""
    function, record, findings = function_of(name), read_run(folder), Findings()
    sequences = settings.sequences_of(name)
    if name in OF_RUNS:
        seeds, steps = _seeds(folder, settings), tuple(dict.fromkeys(settings.steps)) or None
        batches = max(1, sequences // record.settings.batch_size)
        findings.rows = function(folder, device, seeds, steps, settings.toward, batches=batches)
        return findings
    task = _task(folder)
    for seed, step in seed_steps(folder, name, settings):
        which = f"seed {seed}" if step is None else f"seed {seed}, step {step}"
        model = prepared(load(folder, seed, step).to(device), task)
        try:
            check_finite(model, f"{folder}, {which},")
        except NothingToSeeError as error:
            findings.diverged.append(str(error))
            continue
        try:
            rows = function(model, task, settings.ladder, sequences)
        except NotJoinedError:  # other seeds and steps may have joined
            findings.waiting.append((seed, step))
            continue
        findings.rows += [{"seed": seed, "step": step, **row} for row in rows]
    return findings


def _task(folder: Path) -> Task:
    """The task of a run. That of the last runs stays: it knows the truth of their sequences."""
    return _build_task(str(read_run(folder).spec.task))


@lru_cache(maxsize=2)
def _build_task(spec: str) -> Task:
    task: Task = tasks.build(spec)
    return task


def prepared(model: Model, task: Task) -> Model:
    """The model, from here on faster at what analyses do with it; its answers stay the same.

    It has the outputs of answers alone, as one for each token costs time. Its LSTMs prefer torch.
    """
    for sublayer in model.sublayers():
        if isinstance(sublayer.mixer, LSTM):
            sublayer.mixer.prefers_torch = True
    if task.measure == "exact":
        rows = min(task.classes, model.head.out_features)
        for weight in (model.head.weight, model.head.bias):
            weight.data = weight.data[:rows].clone()
        model.head.out_features = rows
    return model
