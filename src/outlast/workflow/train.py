"""Training runs in their folders, and testing what they have become."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from outlast.errors import RunFolderError, TrainingError
from outlast.machine import keep_freed_memory, precision, signals
from outlast.registry import tasks
from outlast.runs.folder import CHECKPOINT, RESULTS, has_file, locked, remove_results
from outlast.runs.kept import is_kept
from outlast.runs.records import ResultRow, read_metrics, read_run
from outlast.runs.spec import Settings
from outlast.runs.status import divergence, tested
from outlast.train.run_state import Progress, RunState
from outlast.train.trainer import Trainer
from outlast.workflow.evaluate import Evaluation, evaluate_run
from outlast.workflow.load import check_corpus

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """Whether all runs came to their end, and for each what went wrong, if it diverged."""

    ended: bool
    failures: list[TrainingError | None]


class Listener:
    """Is told what happens to runs that are trained and tested; does nothing by itself.

    A callback is an object of a subclass. For each pack of runs the hooks are called in this
    order: `starting`, then `training` after every block, then `testing` and `tested` for each run,
    then `ended`; or `failed` at any time after `starting`. `say` may come in between. All are
    called in the thread that trains. A hook that raises stops the run, which can be resumed.
    """

    def starting(self, folders: Sequence[Path], device: torch.device) -> None:
        """Runs are about to be trained together, new ones or from where their folders stand."""

    def say(self, words: str) -> None:
        """Something about all of the runs, such as how many seeds are trained at once."""
        log.info(words)

    def training(self, folder: Path, progress: Progress) -> None:
        """A block of a run is done; `progress.lines` is what it added to the metrics file."""

    def testing(self, folder: Path) -> None:
        """A run is trained; its test begins."""

    def tested(self, folder: Path, rows: list[ResultRow]) -> None:
        """The test of a run is done and written."""

    def ended(self, folders: Sequence[Path], outcome: Outcome) -> None:
        """Runs are trained and tested, or saved because a signal asked for it."""

    def failed(self, folders: Sequence[Path], error: BaseException) -> None:
        """An error or a Ctrl-C while testing has ended the work; it is raised after this."""


class Listeners(Listener):
    """Tells several listeners the same, in their order."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = tuple(listeners)

    def starting(self, folders: Sequence[Path], device: torch.device) -> None:
        for listener in self.listeners:
            listener.starting(folders, device)

    def say(self, words: str) -> None:
        for listener in self.listeners:
            listener.say(words)

    def training(self, folder: Path, progress: Progress) -> None:
        for listener in self.listeners:
            listener.training(folder, progress)

    def testing(self, folder: Path) -> None:
        for listener in self.listeners:
            listener.testing(folder)

    def tested(self, folder: Path, rows: list[ResultRow]) -> None:
        for listener in self.listeners:
            listener.tested(folder, rows)

    def ended(self, folders: Sequence[Path], outcome: Outcome) -> None:
        for listener in self.listeners:
            listener.ended(folders, outcome)

    def failed(self, folders: Sequence[Path], error: BaseException) -> None:
        for listener in self.listeners:
            listener.failed(folders, error)


def train_and_evaluate(
    folders: Sequence[Path],
    device: torch.device,
    listener: Listener | None = None,
    evaluations: Mapping[Path, Evaluation] | None = None,
    share: float = 1.0,
    seeds_at_once: int | None = None,
    processes: int | None = None,
) -> Outcome:
    """Train runs as one, each from where it stands, and test those that were not tested yet.

    A signal asks to save and leave: the outcome is then not `ended`, and nothing is tested. A run
    whose every seed has diverged does not stop the others; it is tested as it was left.

    `evaluations` says which runs are tested, and how; by default all that have no test of what they
    are now. `share` is the share of the device to use. `seeds_at_once` and `processes` replace
    those on record.
    """
    listener = listener or Listener()
    for folder in folders:  # before anything is said about the runs
        check_beginning(folder)
    with _told_of_errors(folders, listener):
        listener.starting(folders, device)
        with signals() as stop:  # from the start: also a stop while memory is measured is a stop
            with open_trainer(
                folders, device, listener.say, share, seeds_at_once, processes
            ) as trainer:
                ended = trainer.train(listener.training, stop=lambda: bool(stop))
                outcome = Outcome(ended, [_failure(trainer, i) for i in range(len(folders))])
            del trainer  # a test has the memory of the device to itself
        if evaluations is None and ended:
            evaluations = {folder: Evaluation() for folder in folders if not tested(folder)}
        for folder, evaluation in (evaluations or {}).items() if ended else ():
            listener.testing(folder)
            listener.tested(folder, evaluate_run(folder, evaluation, device, say=listener.say))
        listener.ended(folders, outcome)
    return outcome


@contextmanager
def _told_of_errors(folders: Sequence[Path], listener: Listener) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        listener.failed(folders, error)
        raise


@contextmanager
def open_trainer(
    folders: Sequence[Path],
    device: torch.device,
    say: Callable[[str], None] = log.info,
    share: float = 1.0,
    seeds_at_once: int | None = None,
    processes: int | None = None,
) -> Iterator[Trainer]:
    """A trainer of runs as their checkpoints left them; the folders are locked meanwhile."""
    records = [read_run(folder) for folder in folders]
    for folder, record in zip(folders, records, strict=True):
        if record.corpus is not None:
            check_corpus(folder, record, tasks.build(record.task))
    specs = [record.spec for record in records]
    specs = [
        replace(run, settings=_with_overrides(run.settings, seeds_at_once, processes))
        for run in specs
    ]
    keep_freed_memory()
    with ExitStack() as context:
        for folder in folders:
            context.enter_context(locked(folder))
            if check_beginning(folder):
                say(f"{folder} has no checkpoint yet: from the beginning")
        context.enter_context(precision(specs[0].settings.precision, device))
        trainer = Trainer(list(zip(specs, folders, strict=True)), device)
        context.callback(trainer.close)
        trainer.resume()
        for run in trainer.runs:
            if words := _kept_words(run):
                say(words)
        unfinished = [f for f, run in zip(folders, trainer.runs, strict=True) if run.unfinished]
        if unfinished:
            say(trainer.choose_waves(share))
        for folder in unfinished:
            remove_results(folder)
        yield trainer


def _kept_words(run: RunState) -> str:
    """What the weights that a run keeps along the way will take of the disk, if it keeps any."""
    every, steps = run.settings.keep_every, run.settings.steps
    if every is None or not run.unfinished:
        return ""
    size = sum(tensor.nbytes for name, tensor in run.tensors().items() if is_kept(name))
    count = -(-steps // every)  # the start is one; the last step is in the checkpoint
    total = (count + 1) * size / 1e6  # each seed's switch: all of them once more
    return (
        f"weights are kept every {every} steps: {count} files of {size / 1e6:.3g} MB, and those of "
        f"each switch; about {total:,.3g} MB of disk at most"
    )


def _with_overrides(
    settings: Settings, seeds_at_once: int | None, processes: int | None
) -> Settings:
    """Settings with other numbers of seeds at once and of processes, where they are given."""
    return replace(
        settings,
        seeds_at_once=settings.seeds_at_once if seeds_at_once is None else seeds_at_once,
        processes=settings.processes if processes is None else processes,
    )


def _failure(trainer: Trainer, index: int) -> TrainingError | None:
    run = trainer.runs[index]
    return divergence(run.run, trainer.folders[index], run.parked, run.step)


def check_beginning(folder: Path) -> int:
    """Refuse to start a run from the beginning if it must have had a checkpoint.

    Returns the last step in the metrics of a run that never had one; 0 for all others.
    """
    if has_file(folder, CHECKPOINT):
        return 0
    if has_file(folder, RESULTS):
        raise RunFolderError(
            f"{folder} has results but no {CHECKPOINT}: there is nothing to go on from; "
            f"put it back, or train anew with --overwrite"
        )
    record = read_run(folder)
    if record.start_from is not None:
        raise RunFolderError(
            f"{folder} has no {CHECKPOINT}, and so not the weights of {record.start_from.run} that "
            f"it starts from: put it back, or train anew with --overwrite"
        )
    first = record.settings.checkpoint_every  # metrics past it came after a checkpoint
    reached = max((line.step for line in read_metrics(folder)), default=0)
    if reached > first:
        raise RunFolderError(
            f"{folder} has no {CHECKPOINT}, though the run had come to step {reached}: put it "
            f"back, or train anew with --overwrite, as in 'outlast train ... --overwrite'"
        )
    return reached
