"""From a run's record to a trained run in its folder: begin, go on, open."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import platform
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from outlast import __version__
from outlast.errors import OutlastError, RunFolderError, TrainingError, bad_value
from outlast.evaluation.accuracy import chance_levels
from outlast.evaluation.ladder import out_of_reach, rungs
from outlast.methods.base import Control
from outlast.models import Model, build_model
from outlast.models.build import canonical_layout
from outlast.registry import methods, tasks
from outlast.runs import (
    BEFORE,
    CHECKPOINT,
    FORMAT,
    METRICS,
    RESULTS,
    RUN,
    STUDY,
    locked,
    read_json,
    read_metrics,
    read_run,
    write_json,
)
from outlast.tasks import Task
from outlast.train.checkpoint import load_state
from outlast.train.plan import setup
from outlast.train.run_state import Progress, RunState, divergence
from outlast.train.settings import RunSpec
from outlast.train.stopping import NEVER, read_stop
from outlast.train.trainer import Trainer
from outlast.train.waves import check_data

log = logging.getLogger(__name__)


def pick_device(name: str = "auto") -> torch.device:
    """`auto` takes the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise OutlastError(f"device={name}: expected auto | cpu | cuda | cuda:1 ...") from None
    if device.type not in ("cpu", "cuda"):
        raise OutlastError(f"device={name}: expected auto | cpu | cuda | cuda:1 ...")
    count = torch.cuda.device_count()
    if device.type == "cuda" and not (count and (device.index or 0) < count):
        seen = f"{count} CUDA device{'s' * (count > 1)}" if count else "no CUDA device"
        raise OutlastError(f"device={name}: torch sees {seen} here; use device=cpu")
    return device


def canonical(run: RunSpec) -> RunSpec:
    """The same run with every spec written out in full; bad specs are errors here."""
    names = [methods.canonical(method).name for method in run.methods]
    again = [name for name in names if names.count(name) > 1]
    if again:
        raise bad_value("method", " + ".join(run.methods), f"each method once: {again[0]} is twice")
    return replace(
        run,
        task=str(tasks.canonical(run.task, full=True)),
        model=str(canonical_layout(run.model, full=True)),
        methods=tuple(str(methods.canonical(m, full=True)) for m in run.methods),
        settings=replace(run.settings, stop=str(read_stop(run.settings.stop) or NEVER)),
    )


def describe(run: RunSpec) -> dict[str, Any]:
    """What `run.json` holds: the record and what a reader wants to know beside it."""
    task = tasks.build(run.task)
    model = build_model(run.model, task.vocabulary, task.classes, seed=0)
    known = setup(run.settings, task, model)
    for spec in run.methods:  # one that does not go with the task is an error now
        method, control = methods.build(spec), Control.plain(known)
        method.control(0, method.begin(known), control)
        if control.span and not model.uses_positions:
            log.warning("%s: nothing in this model asks where a token stands", method.spec.name)
    _check_stop(run, task, model)
    return {
        "format": FORMAT,
        "outlast": __version__,
        **run.to_json(),
        "shown": {
            "task": str(tasks.canonical(run.task)),
            "model": str(canonical_layout(run.model)),
            "methods": [str(methods.canonical(m)) for m in run.methods],
        },
        "parts": task.parts,
        "auxiliary": task.auxiliary,
        "length": task.lengths[1],
        "parameters": model.size,
        "chance": chance_levels(task),
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("torch", "numpy", "safetensors")},
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _check_stop(run: RunSpec, task: Task, model: Model) -> None:
    """A length that cannot be probed is none to succeed at."""
    goal = read_stop(run.settings.stop)
    if goal is not None:
        ((_, length),) = rungs(task, (goal.at,))
        reason = out_of_reach(task, length, model.ceiling)
        if reason is not None:
            raise bad_value("stop: at", goal.at, f"a multiple that can be tested: {reason}")


def begin(run: RunSpec, folder: Path, device: torch.device, overwrite: bool = False) -> None:
    """Make the folder of a new run; one that holds a run already is left alone unless told."""
    begin_all([(run, folder)], device, overwrite)


def begin_all(
    runs: Sequence[tuple[RunSpec, Path]],
    device: torch.device,
    overwrite: bool = False,
    named: Path | None = None,
    **more: object,
) -> None:
    """Make the folders of new runs, or of none: what is wrong with one is an error before that.

    Their records hold `more` beside what every run's does; `named` is the folder of their grid.
    """
    more |= {"device": _device_name(device)}
    records = [(folder, describe(canonical(run)) | more) for run, folder in runs]
    for folder, _ in records:
        claim(folder, overwrite, named=named)
    for run, _ in runs:
        check_data(tasks.build(run.task), len(run.seeds), run.settings, device)
    with contextlib.ExitStack() as held:
        for folder, _ in records:
            held.enter_context(locked(folder))
            claim(folder, overwrite, named=named)  # another process may have been faster
        for folder, record in records:
            # in this order, and the record last: a kill in between leaves a run that can go on
            for name in (BEFORE, RESULTS, METRICS, CHECKPOINT):
                (folder / name).unlink(missing_ok=True)
            write_json(folder / RUN, record)


def claim(
    folder: Path,
    overwrite: bool = False,
    anew: str = ", start anew with --overwrite,",
    named: Path | None = None,
) -> None:
    """A folder that holds a run, or what is left of one, is an error; `anew` is a way out of it.

    So is one that holds a grid or a study, even with `overwrite`: the run would hide it. `named` is
    what to go on with, if it is more than the folder: that of its grid.
    """
    try:
        there = [n for n in (RUN, METRICS, CHECKPOINT, RESULTS) if (folder / n).exists()]
        inside = [f"other runs, such as {p.parent.name}" for p in folder.glob(f"*/{RUN}")]
        hidden = "a study" if (folder / STUDY).exists() else min(inside, default="")
    except OSError as error:  # a name that is too long, among others
        raise RunFolderError(f"cannot use {folder} as a run folder: {error.strerror}") from None
    if hidden and RUN not in there:
        raise RunFolderError(f"{folder} holds {hidden}; a run would hide it: choose another --out")
    if there and not overwrite:
        raise RunFolderError(
            f"{folder} holds a run already: go on with 'outlast resume {named or folder}'{anew} "
            f"or choose another --out"
        )


def go_on(
    folder: Path, device: torch.device, watch: Callable[[Progress], None] | None = None
) -> bool:
    """Train a run from where it stands; False if a signal asked to save and leave.

    One whose every seed has diverged is an error, once it is saved.
    """
    ended, (failure,) = go_on_together(
        [folder], device, None if watch is None else lambda _, progress: watch(progress)
    )
    if failure is not None:
        raise failure
    return ended


def go_on_together(
    folders: Sequence[Path],
    device: torch.device,
    watch: Callable[[Path, Progress], None] | None = None,
    say: Callable[[str], None] = log.info,
    share: float = 1.0,
    **told: Any,
) -> tuple[bool, list[TrainingError | None]]:
    """Train runs as one, each from where it stands; False if a signal asked to save and leave.

    A run whose every seed has diverged does not stop the others; its error is told beside, also if
    it was so before. `say` is told how many seeds are trained at once and why; `share` is the share
    of the device that is ours; `told` are `together` and `processes`, if other than on record.
    """
    own = [RunSpec.read(read_run(folder)) for folder in folders]
    runs = [replace(run, settings=replace(run.settings, **told)) for run in own]
    keep_freed_memory()
    with contextlib.ExitStack() as held:
        for folder, run in zip(folders, runs, strict=True):
            held.enter_context(locked(folder))
            if not (folder / CHECKPOINT).exists():
                _check_beginning(folder, run.settings.checkpoint, say)
        held.enter_context(precision(runs[0].settings.precision, device))
        asked = held.enter_context(signals())
        fleet = Trainer(list(zip(runs, folders, strict=True)), device)
        held.callback(fleet.close)
        fleet.resume()
        going = [trainer for trainer in fleet.trainers if trainer.going]
        if going:
            say(fleet.fit(share))
        for trainer in going:  # a test of what it is now will not be one of what it becomes
            for name in (BEFORE, RESULTS):
                (trainer.folder / name).unlink(missing_ok=True)
        tell = None if watch is None else lambda t, progress: watch(t.folder, progress)
        ended = fleet.train(tell, stop=lambda: bool(asked))
        return ended, [trainer.failure for trainer in fleet.trainers]


def _check_beginning(folder: Path, first: int, say: Callable[[str], None]) -> None:
    """A run without a checkpoint starts from the beginning, if it cannot have had one.

    `first` is the step of its first checkpoint: metrics past it were written after that was saved.
    """
    if (folder / RESULTS).exists():
        raise RunFolderError(
            f"{folder} has results but no {CHECKPOINT}: there is nothing to go on from; "
            f"put it back, or train anew with --overwrite"
        )
    reached = max((line["step"] for line in read_metrics(folder)), default=0)
    if reached > first:
        raise RunFolderError(
            f"{folder} has no {CHECKPOINT}, though the run had come to step {reached}: put it "
            f"back, or train anew with --overwrite, as in 'outlast train ... --overwrite'"
        )
    if reached:
        say(f"{folder} has no checkpoint yet: from the beginning")


def open_run(folder: Path, device: torch.device) -> RunState:
    """A run as its last checkpoint left it, for testing; nothing in the folder is changed."""
    if not (folder / CHECKPOINT).exists():
        read_run(folder)
        raise RunFolderError(f"{folder} has no {CHECKPOINT}: nothing was trained there yet")
    trainer = RunState(RunSpec.read(read_run(folder)), folder, device)
    trainer.resume()
    return trainer


def load(folder: str | Path, seed: int | None = None) -> Model:
    """The trained model of one seed of a run, ready to use (the first seed if none is named)."""
    trainer = open_run(Path(folder), torch.device("cpu"))
    seeds = trainer.run.seeds
    if seed is not None and seed not in seeds:
        raise OutlastError(f"seed={seed}: {folder} has the seeds {', '.join(map(str, seeds))}")
    row = 0 if seed is None else seeds.index(seed)
    model = trainer.stack.model
    model.load_state_dict({n: t[row] for n, t in trainer.test_weights().items()})
    control = trainer.control(row)
    for sublayer in model.sublayers():
        sublayer.set_gate(control.gate[sublayer.pathway])
        sublayer.set_upstream_grad(1.0)
        sublayer.lends_bias = False  # from here on it may be hooked on to
    model.span = control.span
    return model.eval()


def finished(folder: Path) -> bool:
    """Whether a run has been trained to its last step, or until no seed was left to train."""
    if not (folder / CHECKPOINT).exists():
        return False
    state = load_state(folder)
    seeds = zip(state["parked"], state["succeeded"], strict=True)
    rest = all(parked is not None or succeeded is not None for parked, succeeded in seeds)
    return rest or bool(state["step"] >= read_run(folder)["settings"]["steps"])


def diverged(folder: Path) -> TrainingError | None:
    """What to tell of a run whose every seed was parked, as its last checkpoint says."""
    run, state = RunSpec.read(read_run(folder)), load_state(folder)
    return divergence(run, folder, state["parked"], state["step"])


def tested(folder: Path) -> bool:
    """Whether the results of a run are of what its last checkpoint holds."""
    if not ((folder / RESULTS).exists() and (folder / CHECKPOINT).exists()):
        return False
    state = load_state(folder)
    return bool(read_json(folder / RESULTS, "results").get("step") == state["step"])


def keep_freed_memory() -> None:
    """Ask the C library to keep large blocks that were freed, for the next step to use.

    By default glibc hands them back to the system at once, and every page of the next step's
    tensors is a fault again: about a third of a small step on the CPU.
    """
    mmap_threshold, trim_threshold = -3, -1
    with contextlib.suppress(OSError, AttributeError):  # another C library: nothing to ask
        library = ctypes.CDLL(None)
        library.mallopt(mmap_threshold, 1 << 30)
        library.mallopt(trim_threshold, (1 << 31) - 1)


@contextmanager
def precision(name: str, device: torch.device) -> Iterator[None]:
    """Products of float32 in the wanted precision, for as long as a run lasts."""
    before = torch.get_float32_matmul_precision()
    fast = name == "tf32" or (name in ("auto", "bf16") and device.type == "cuda")
    torch.set_float32_matmul_precision("high" if fast else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def signals() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM ask to save and leave; a second Ctrl-C leaves at once."""
    asked: list[int] = []

    def ask(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and number in asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, ask)
    except ValueError:  # not in the main thread: whoever is handles signals
        pass
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{device.type} ({platform.machine()}, {threads} thread{'s' * (threads != 1)})"
