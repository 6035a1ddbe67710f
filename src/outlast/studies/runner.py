"""Running the arms of a study side by side in processes, each in its own run folder.

Arms of one model, task and batch may share a process, where they are trained as one (on a GPU they
are, as that fills it best). An arm's record names those it was created with. It is resumed beside
the same ones, finished or not, and so bit for bit as if it had not been stopped. Arms that were at
their end before it was created are left out. On a CPU an arm has the cores that others leave: with
more or fewer than before it is the same up to float32 rounding.

An arm that is finished is left alone, and one that was interrupted is resumed. So a study is
resumed by giving the same command again. An arm whose every seed has diverged is finished too: it
is tested as it was left, and named.

An arm whose process was killed goes on in a new process, a few times. An arm with an error of its
own fails at once, as it would fail again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from outlast.errors import OutlastError, RunFolderError, TrainingError
from outlast.machine import pick_device, signals, usable_threads
from outlast.processes import Parent, ProcessDiedError
from outlast.runs.folder import RUN
from outlast.runs.records import ResultRow, read_run
from outlast.runs.status import covers, diverged, finished, tested
from outlast.studies.base import Arm, Study
from outlast.sweep.devices import Event, run_queue
from outlast.sweep.engine import RETRIES
from outlast.sweep.packs import Pack as SweepPack
from outlast.sweep.packs import make_pack
from outlast.sweep.work import PackJob, Slot
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
    #: how often its process was lost, and whether one had created its runs before
    losses: int = 0
    created: bool = False

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

    `device` may be several, such as ``cuda:0,cuda:1``: processes go to them in turn. `together`
    says whether arms that can be are trained as one; by default on a GPU.
    """
    devices = device.split(",")
    if together is None:
        together = pick_device(devices[0]).type == "cuda"
    unfinished = {a.name for a in unfinished_arms(arms, out, overwrite, study)}
    for arm in arms:
        if arm.name not in unfinished:
            watch(_last_update(arm.name, diverged(out / arm.name)))
    waiting = [
        Pack(needed(pack, out, todo), out, todo)
        for pack in packs(arms, together)
        if (todo := frozenset(a.name for a in pack) & unfinished)
    ]
    slots = _slots(devices, max(1, min(workers, len(waiting))))
    test = (study.ladder, study.sequences, study.precision)

    def work(pack: Pack, slot: Slot) -> tuple[Callable[..., None], tuple[Pack, Job]]:
        anew = overwrite and not pack.created  # what was created anew goes on
        return run_pack, (pack, Job(slot.device, slot.threads, slot.share, anew, *test))

    #: the last state of each arm with work to do
    states: dict[str, str] = {}
    jobs = deque(waiting)
    with signals() as asked, closing(run_queue(jobs, slots, work, asked)) as events:
        for event in events:
            updates = _updates(event, states, bool(asked))
            if any(update.state == "lost" for update in updates):
                jobs.append(_next_try(event.job, states))
            for update in updates:
                states[update.arm] = update.state
                if update.state in ENDS:
                    unfinished.discard(update.arm)
                watch(update)
    return sorted(unfinished)


def _next_try(pack: Pack, states: Mapping[str, str]) -> Pack:
    """A pack whose process was lost, as the next process gets it.

    The arms that are at their end stay in it: the others go on beside those they were begun with.
    """
    todo = frozenset(name for name in pack.names if states[name] not in FINAL_STATES)
    # whatever a process tells of an arm, it tells after it has created all of the pack
    created = pack.created or any(states[name] != "started" for name in pack.names)
    return replace(pack, todo=todo, losses=pack.losses + 1, created=created)


def _slots(devices: Sequence[str], at_once: int) -> list[Slot]:
    """So many processes, each with its share of the threads and of the memory of its device."""
    used = [devices[index % len(devices)] for index in range(at_once)]
    threads = max(1, usable_threads() // at_once)
    return [Slot(device, threads, 1 / used.count(device)) for device in used]


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
    return study is None or covers(
        folder, arm.ladder or study.ladder, arm.sequences or study.sequences
    )


def _updates(event: Event[Pack], states: Mapping[str, str], asked: bool) -> list[Update]:
    """What an event means for the arms of its pack; `states` are the last ones before it."""
    names = event.job.names
    if event.kind == "started":
        return [Update(name, "started") for name in names]
    if event.kind == "message":
        return [event.value]
    if event.kind == "ended":
        return []
    names = [name for name in names if states[name] not in FINAL_STATES]
    state, reason = _explain(event, asked)  # the other packs go on
    if state == "lost":
        words = f"{reason}; trying again from the last checkpoint"
        return [Update(name, state, words=words, pack=tuple(names)) for name in names]
    return [Update(name, state, error=reason) for name in names]


def _explain(event: Event[Pack], asked: bool) -> tuple[str, str]:
    """What an error makes of the arms of a pack that are not at their end: a state and a reason."""
    error, times = event.value, event.job.losses + 1
    if isinstance(error, ProcessDiedError):
        reason = f"its process {error.how}"
        if asked:  # a process that was asked before it could listen has died of it
            return "stopped", ""
        if times <= RETRIES:
            return "lost", reason
        return "failed", f"lost {times} times; the last time {reason}"
    if isinstance(error, OutlastError):
        return "failed", str(error)
    log.error("%s", "\n".join(getattr(error, "__notes__", [repr(error)])))
    return "failed", f"{type(error).__name__}: {error}"


def cluster_packs(study: Study, arms: list[Arm], out: Path, together: bool) -> list[SweepPack]:
    """The packs of the arms with work to do, as a Ray cluster trains them (`sweep.run_packs`).

    A task of the cluster has a folder of its own until it is at its end. So an arm that was begun
    without a cluster cannot go on there: that is an error. What a killed driver had not yet put in
    its place is put there first.
    """

    def sweep_pack(pack: Sequence[Arm]) -> SweepPack:
        tests = {
            a.name: Evaluation(
                a.ladder or study.ladder, a.sequences or study.sequences, study.precision
            )
            for a in pack
        }
        return make_pack({a.name: a.run for a in pack}, tests)

    for pack in packs(arms, together):
        folder = PackJob(sweep_pack(pack), out).folder
        if folder.claimed:
            folder.record()
    unfinished = unfinished_arms(arms, out, False, study)
    for arm in unfinished:
        if (out / arm.name / RUN).exists():
            raise RunFolderError(
                f"{out / arm.name} was begun without a cluster: go on without --ray, or choose "
                f"another --out"
            )
    return [sweep_pack(pack) for pack in packs(unfinished, together)]


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
        # whoever wants the lines reads them from the folder
        self.send(Update(folder.name, "training", replace(progress, lines=())))

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
        pack.out / arm.name: Evaluation(
            arm.ladder or job.ladder, arm.sequences or job.sequences, job.precision
        )
        for arm in pack.arms
        if arm.name in pack.todo
    }
    train_and_evaluate(pack.folders, device, _Sender(parent, pack), evaluations, job.share)
