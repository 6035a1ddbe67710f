"""What is done with a pack, on whichever machine: an attempt that trains, tests and claims it."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from outlast.errors import OutlastError
from outlast.machine import pick_device
from outlast.runs.folder import RUN, has_file
from outlast.runs.records import ResultRow
from outlast.sweep.attempts import HIDDEN, PackFolder, steps_of
from outlast.sweep.packs import Pack
from outlast.train.run_state import Progress
from outlast.version import __version__
from outlast.workflow.create import create_runs
from outlast.workflow.train import Listener, Outcome, train_and_evaluate

#: seconds between two reports of a pack
QUIET = 0.5


def versions() -> dict[str, str]:
    """What must be the same wherever packs are trained, or their numbers would not be."""
    return {"outlast": __version__, "torch": str(torch.__version__)}


class BadPlaceError(OutlastError):
    """A machine that cannot take part in a sweep. Nothing is wrong with the pack."""


@dataclass(frozen=True)
class Slot:
    """A place for one pack at a time: a device, threads of the CPU, a share of the memory."""

    device: str
    threads: int = 1
    share: float = 1.0


@dataclass(frozen=True)
class PackJob:
    """A pack, and the folder of its sweep; `versions` are those of the driver."""

    pack: Pack
    out: Path
    versions: dict[str, str] = field(default_factory=versions)

    @property
    def folder(self) -> PackFolder:
        return PackFolder(self.out, self.pack.name, tuple(self.pack.names))


@dataclass(frozen=True)
class PackProgress:
    """How far an attempt at a pack is: where it runs, its share of all seed-steps, what it does."""

    place: str
    share: float
    words: str = "training"


#: is told how far an attempt is, and in which folder it writes
Tell = Callable[[Path, PackProgress], None]


def run_attempt(job: PackJob, slot: Slot, tell: Tell) -> bool:
    """Train and test a pack, and claim it; whether it is at its end, by this attempt or another.

    False: a signal has asked to save and leave. The next attempt goes on from what was saved.
    """
    check_versions(job.versions)
    torch.set_num_threads(slot.threads)
    try:
        device = pick_device(slot.device)
    except OutlastError as error:
        raise BadPlaceError(f"{platform.node()}: {error}") from None
    if not (job.out / HIDDEN).is_dir():
        raise BadPlaceError(
            f"{platform.node()} has not the folder {job.out} of the sweep: all machines that take "
            f"part must share it"
        )
    if job.folder.claimed:
        return True
    folder = job.folder.begin()
    try:
        ended = _train(job.pack, folder, device, slot, tell)
    except Exception:
        if not any(steps_of(folder, job.pack.names)):
            shutil.rmtree(folder, ignore_errors=True)  # nothing to go on from
        raise
    if ended:
        job.folder.finish(folder)
    return ended


def _train(pack: Pack, folder: Path, device: torch.device, slot: Slot, tell: Tell) -> bool:
    folders = [folder / name for name in pack.names]
    if not all(has_file(run, RUN) for run in folders):
        pairs = [(run, folder / name) for name, run in pack.runs]
        create_runs(pairs, device, pack=pack.names)
    evaluations = dict(zip(folders, pack.evaluations, strict=True))
    reporter = _Reporter(pack, folder, f"{platform.node()} {device}", tell)
    return train_and_evaluate(folders, device, reporter, evaluations, slot.share).ended


def check_versions(wanted: dict[str, str]) -> None:
    """Refuse to train with other versions than the driver's."""
    here = versions()
    if here != wanted:
        both = (", ".join(f"{n} {v}" for n, v in each.items()) for each in (here, wanted))
        raise BadPlaceError("{} has {}, the sweep has {}".format(platform.node(), *both))


class _Reporter(Listener):
    """Tells how far a pack is, but not more often than somebody can read."""

    def __init__(self, pack: Pack, folder: Path, place: str, tell: Tell) -> None:
        self.total, self.folder, self.place, self.tell = pack.seed_steps, folder, place, tell
        self.seeds = {name: len(run.seeds) for name, run in pack.runs}
        self.steps = dict(zip(pack.names, steps_of(folder, pack.names), strict=True))
        self.tests, self.last = 0, 0.0

    def starting(self, folders: Sequence[Path], device: torch.device) -> None:
        self._report("starting")
        self.last = 0.0  # the first block is told, too

    def say(self, words: str) -> None:
        """Which waves a pack is trained in is of little interest among many packs."""

    def training(self, folder: Path, progress: Progress) -> None:
        self.steps[folder.name] = progress.steps if progress.over else progress.step
        if time.monotonic() - self.last > QUIET:
            self._report("training")

    def testing(self, folder: Path) -> None:
        if time.monotonic() - self.last > QUIET:
            self._report(f"testing {self.tests + 1} of {len(self.steps)}")

    def tested(self, folder: Path, rows: list[ResultRow]) -> None:
        self.tests += 1

    def ended(self, folders: Sequence[Path], outcome: Outcome) -> None:
        self._report("tested" if outcome.ended else "saved")

    def _report(self, words: str) -> None:
        self.last = time.monotonic()
        done = sum(step * self.seeds[name] for name, step in self.steps.items())
        self.tell(self.folder, PackProgress(self.place, done / self.total, words))
