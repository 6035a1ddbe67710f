"""Running the arms of a study side by side in processes, each in its own run folder.

Arms of one model, task and batch may share a process, where they are trained as one (on a GPU they
are, as that fills it best). An arm's record names those it was created with. It is resumed beside
the same ones, finished or not, and so bit for bit as if it had not been stopped. Arms that were at
their end before it was created are left out. On a CPU an arm has the cores that others leave: with
more or fewer than before it is the same up to float32 rounding.

An arm that is finished is left alone, and one that was interrupted is resumed. So a study is
resumed by giving the same command again. An arm whose every seed has diverged is finished too: it
is tested as it was left, and named.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from outlast.errors import OutlastError, RunFolderError, TrainingError
from outlast.machine import pick_device, signals, usable_threads
from outlast.processes import Child, Parent, ProcessDiedError, ready_children
from outlast.runs.folder import RUN
from outlast.runs.records import ResultRow, read_run
from outlast.runs.status import covers, diverged, finished, tested
from outlast.studies.base import Arm, Study
from outlast.train.run_state import Progress
from outlast.train.seeds import shared_by_pack
from outlast.workflow.create import canonical, create_runs
from outlast.workflow.evaluate import Evaluation
from outlast.workflow.train import Listener, Outcome, train_and_evaluate

log = logging.getLogger(__name__)
#: the states in which an arm needs nothing more, and all those after which nothing is said of it
ENDS = ("done", "diverged")
FINAL_STATES = (*ENDS, "failed", "stopped")


@dataclass(frozen=True)
class Update:
    """What an arm's process tells: progress, that it is done or has diverged, what went wrong.

    `words` are about all the arms in `pack`; each of these arms has an update with them.
    """

    arm: str
    state: str
    progress: Progress | None = None
    error: str = ""
    words: str = ""
    pack: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pack:
    """Arms that share a process, where their folders are, and which of them need work."""

    arms: tuple[Arm, ...]
    out: Path
    todo: frozenset[str]

    @property
    def folders(self) -> list[Path]:
        return [self.out / arm.name for arm in self.arms]

    @property
    def names(self) -> list[str]:
        """The arms that need work, in order."""
        return [arm.name for arm in self.arms if arm.name in self.todo]


@dataclass(frozen=True)
class Job:
    """How a process is to go about its pack."""

    device: str
    threads: int
    share: float
    overwrite: bool
    ladder: Sequence[float]
    sequences: int
    precision: str = "fp32"


#: the process of each pack, and the last state of each of its arms with work to do
_Running = dict[Child, dict[str, str]]


def run_study(
    study: Study,
    arms: list[Arm],
    out: Path,
    device: str,
    workers: int,
    overwrite: bool,
    watch: Callable[[Update], None],
    together: bool | None = None,
) -> list[str]:
    """Run arms, `workers` processes at a time; returns the names of those not at their end.

    `together` says whether arms that can be are trained as one; by default on a GPU.
    """
    if together is None:
        together = pick_device(device).type == "cuda"
    unfinished = {a.name for a in unfinished_arms(arms, out, overwrite, study)}
    for arm in arms:
        if arm.name not in unfinished:
            watch(_last_update(arm.name, diverged(out / arm.name)))
    waiting = [
        Pack(needed(pack, out, todo), out, todo)
        for pack in packs(arms, together)
        if (todo := frozenset(a.name for a in pack) & unfinished)
    ]
    at_once = max(1, min(workers, len(waiting)))
    threads, share = max(1, usable_threads() // at_once), 1 / at_once
    test = (study.ladder, study.sequences, study.precision)
    job = Job(device, threads, share, overwrite, *test)
    running: _Running = {}
    with signals() as asked:
        try:
            while (waiting and not asked) or running:
                while waiting and len(running) < workers and not asked:
                    pack = waiting.pop(0)
                    child = Child(run_pack, pack, job, graceful=True)
                    running[child] = dict.fromkeys(pack.names, "started")
                    for name in pack.names:
                        watch(Update(name, "started"))
                for child in running if asked else ():
                    child.ask_to_stop()
                for update in _updates(running, bool(asked)):
                    if update.state in ENDS:
                        unfinished.discard(update.arm)
                    watch(update)
        finally:
            for child in running:
                child.close()  # it saves and leaves
    return sorted(unfinished)


def _last_update(arm: str, failure: TrainingError | None) -> Update:
    """What is said of an arm that is trained and tested."""
    return Update(arm, "done") if failure is None else Update(arm, "diverged", error=str(failure))


def packs(arms: Sequence[Arm], together: bool) -> list[tuple[Arm, ...]]:
    """Arms that are trained as one: those of one model, task and batch, in their order."""
    if not together:
        return [(arm,) for arm in arms]
    shared: dict[object, list[Arm]] = {}
    for arm in arms:
        shared.setdefault(shared_by_pack(canonical(arm.run)), []).append(arm)
    return [tuple(pack) for pack in shared.values()]


def needed(pack: Sequence[Arm], out: Path, todo: Collection[str]) -> tuple[Arm, ...]:
    """The arms of a pack with work to do, and those that one of them was begun with."""
    kept = set(todo)
    for arm in pack:
        if arm.name in todo and (out / arm.name / RUN).exists():
            created_with = read_run(out / arm.name).pack
            # a record that does not say is an older one: all were stepped then
            kept |= {a.name for a in pack if not created_with or a.name in created_with}
    return tuple(a for a in pack if a.name in kept)


def unfinished_arms(
    arms: list[Arm], out: Path, overwrite: bool, study: Study | None = None
) -> list[Arm]:
    """The arms there is work to do for; a folder that holds another run is an error.

    With a study, one that has been tested by less than the study's test is tested again.
    """
    return [arm for arm in arms if overwrite or not _done(arm, out / arm.name, study)]


def _done(arm: Arm, folder: Path, study: Study | None) -> bool:
    """Whether an arm needs nothing more."""
    if not (folder / RUN).exists():
        return False
    # the record is spelt out anew: an argument may have come since, with a default
    differences = canonical(read_run(folder).spec).differences(canonical(arm.run))
    if differences:
        raise RunFolderError(
            f"{folder} holds a run with other seeds or settings ({'; '.join(differences)}): "
            f"choose another --out, or start anew with --overwrite"
        )
    if not (finished(folder) and tested(folder)):
        return False
    return study is None or covers(folder, arm.ladder or study.ladder, study.sequences)


def _updates(running: _Running, asked: bool) -> list[Update]:
    """The updates of a moment; a pack whose process has ended is taken off `running`."""
    updates = []
    for child in ready_children(list(running), timeout=0.2):
        states = running[child]
        try:
            received = [child.receive()]
        except Exception as error:  # the other packs go on
            if isinstance(error, ProcessDiedError):
                del running[child]
            state, reason = _explain(error, asked)
            open_arms = [arm for arm, last in states.items() if last not in FINAL_STATES]
            received = [Update(arm, state, error=reason) for arm in open_arms]
        states |= {update.arm: update.state for update in received}
        updates += received
    return updates


def _explain(error: Exception, asked: bool) -> tuple[str, str]:
    """What an error makes of the arms of a pack that are not at their end: a state and a reason."""
    if isinstance(error, ProcessDiedError):
        # a process that was asked before it could listen has died of it
        return ("stopped", "") if asked else ("failed", f"its process {error.how}")
    if isinstance(error, OutlastError):
        return "failed", str(error)
    log.error("%s", "\n".join(getattr(error, "__notes__", [repr(error)])))
    return "failed", f"{type(error).__name__}: {error}"


class _Sender(Listener):
    """Sends what happens to the arms of a pack to the parent process.

    An arm that was at its end before is in the pack for the others' sake: nothing is sent of it.
    """

    def __init__(self, parent: Parent, pack: Pack) -> None:
        self.parent = parent
        self.states = dict.fromkeys(pack.names, "training")

    def send(self, update: Update) -> None:
        if update.arm in self.states:
            self.states[update.arm] = update.state
            self.parent.send(replace(update, pack=tuple(self.states)))

    def say(self, words: str) -> None:
        for name, state in self.states.items():
            self.send(Update(name, state, words=words))

    def training(self, folder: Path, progress: Progress) -> None:
        self.send(Update(folder.name, "training", progress))

    def testing(self, folder: Path) -> None:
        self.send(Update(folder.name, "testing"))

    def tested(self, folder: Path, rows: list[ResultRow]) -> None:
        self.send(_last_update(folder.name, diverged(folder)))

    def ended(self, folders: Sequence[Path], outcome: Outcome) -> None:
        for folder in () if outcome.ended else folders:
            self.send(Update(folder.name, "stopped"))


def run_pack(parent: Parent, pack: Pack, job: Job) -> None:
    """What the process of a pack does: create its runs or resume them, then test them."""
    torch.set_num_threads(job.threads)
    device = pick_device(job.device)
    pairs = [(arm.run, folder) for arm, folder in zip(pack.arms, pack.folders, strict=True)]
    new = [pair for pair in pairs if job.overwrite or not (pair[1] / RUN).exists()]
    create_runs(new, device, job.overwrite, pack=[arm.name for arm in pack.arms])
    evaluations = {
        pack.out / arm.name: Evaluation(arm.ladder or job.ladder, job.sequences, job.precision)
        for arm in pack.arms
        if arm.name in pack.todo
    }
    train_and_evaluate(pack.folders, device, _Sender(parent, pack), evaluations, job.share)
