"""Running the arms of a study side by side in processes, each in its own run folder.

Arms of one model, task and batch may share a process, where they are trained as one (on a GPU they
are, as that fills it best). An arm's record names those it was begun with. It goes on beside the
same ones, finished or not, and so bit for bit as if it had not been stopped; arms that were at
their end before it began are left out. (On a CPU it has the cores to itself that others leave: with
more or fewer than before it is the same to float32 rounding.)

An arm that is finished is left alone, one that was interrupted goes on where it stopped; so a
study is resumed by giving the same command again. An arm whose every seed has diverged is finished
too: it is tested as it was left, and told apart.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from outlast.errors import OutlastError, RunFolderError, TrainingError
from outlast.machine import pick_device, signals, usable_threads
from outlast.runs.folder import RUN
from outlast.runs.records import read_run
from outlast.runs.status import covers, diverged, finished, tested
from outlast.studies.base import Arm, Study
from outlast.train.run_state import Progress
from outlast.train.seeds import shared_by_pack
from outlast.workflow.create import canonical, create_runs
from outlast.workflow.evaluate import Evaluation
from outlast.workflow.train import Listener, Outcome, train_and_evaluate

#: the states in which an arm needs nothing more, and all those after which nothing is said of it
ENDS = ("done", "diverged")
LAST_WORDS = (*ENDS, "failed", "stopped")


@dataclass(frozen=True)
class News:
    """What an arm's process tells: progress, that it is done or has diverged, what went wrong.

    `words` are about all the arms in `pack`, each of which is told them.
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


@dataclass(frozen=True)
class Job:
    """How a process is to go about its pack."""

    device: str
    threads: int
    share: float
    ladder: Sequence[float]
    sequences: int
    overwrite: bool
    precision: str = "fp32"


@dataclass
class _Worker:
    """The process of a pack, where its news come from, and what it said last of each arm."""

    process: BaseProcess
    ear: Connection
    said: dict[str, str]
    asked: bool = False


def run_study(
    study: Study,
    arms: list[Arm],
    out: Path,
    device: str,
    workers: int,
    overwrite: bool,
    watch: Callable[[News], None],
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
            watch(_end(arm.name, diverged(out / arm.name)))
    waiting = [
        Pack(needed(pack, out, todo), out, todo)
        for pack in packs(arms, together)
        if (todo := frozenset(a.name for a in pack) & unfinished)
    ]
    context = multiprocessing.get_context("spawn")
    running: dict[str, _Worker] = {}
    beside = max(1, min(workers, len(waiting)))
    threads = max(1, usable_threads() // beside)
    job = Job(
        device,
        threads,
        1 / beside,
        study.ladder,
        study.sequences,
        overwrite,
        study.precision,
    )
    with signals() as asked:
        while (waiting and not asked) or running:
            while waiting and len(running) < workers and not asked:
                pack = waiting.pop(0)
                # a pipe for each: one that dies while it writes does not hold up the others
                ear, mouth = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(pack, job, mouth))
                process.start()
                mouth.close()
                names = [a.name for a in pack.arms if a.name in pack.todo]
                running[names[0]] = _Worker(process, ear, dict.fromkeys(names, "started"))
                for name in names:
                    watch(News(name, "started"))
            if asked:
                _pass_on(running)
            for news in _listen(running, bool(asked)):
                if news.state in ENDS:
                    unfinished.discard(news.arm)
                watch(news)
    return sorted(unfinished)


def _end(arm: str, failure: TrainingError | None) -> News:
    """What is said of an arm that is trained and tested."""
    return News(arm, "done") if failure is None else News(arm, "diverged", error=str(failure))


def packs(arms: Sequence[Arm], together: bool) -> list[tuple[Arm, ...]]:
    """Arms that are trained as one: those of one model, task and batch, in their order."""
    if not together:
        return [(arm,) for arm in arms]
    found: dict[object, list[Arm]] = {}
    for arm in arms:
        found.setdefault(shared_by_pack(canonical(arm.run)), []).append(arm)
    return [tuple(pack) for pack in found.values()]


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

    def tested_in_full(arm: Arm) -> bool:
        return study is None or covers(out / arm.name, arm.ladder or study.ladder, study.sequences)

    return [a for a in arms if not (_done(a, out / a.name, overwrite) and tested_in_full(a))]


def _done(arm: Arm, folder: Path, overwrite: bool) -> bool:
    """Whether an arm needs nothing more; one that holds another run is an error."""
    if overwrite or not (folder / RUN).exists():
        return False
    # the record is spelt out anew: an argument may have come since, with a default
    differences = canonical(read_run(folder).spec).differences(canonical(arm.run))
    if differences:
        raise RunFolderError(
            f"{folder} holds a run with other seeds or settings ({'; '.join(differences)}): "
            f"choose another --out, or start anew with --overwrite"
        )
    return finished(folder) and tested(folder)


def _listen(running: dict[str, _Worker], asked: bool) -> list[News]:
    """The news of a moment; a pack whose process has ended is taken off `running`."""
    names = {worker.ear: name for name, worker in running.items()}
    heard = []
    for ear in wait(list(names), timeout=0.2):
        key = names[ear]  # type: ignore[index]
        worker = running[key]
        try:
            news: News = worker.ear.recv()
            worker.said[news.arm] = news.state
            heard.append(news)
        except (EOFError, OSError):
            del running[key]
            worker.process.join()
            for name, said in worker.said.items():
                if said in LAST_WORDS:
                    continue
                if asked:  # before it could listen
                    heard.append(News(name, "stopped"))
                else:  # killed, perhaps for want of memory
                    code = worker.process.exitcode
                    heard.append(News(name, "failed", error=f"its process ended, exit code {code}"))
    return heard


def _pass_on(running: dict[str, _Worker]) -> None:
    """Ask each process once to save and leave."""
    for worker in running.values():
        if not worker.asked:
            worker.asked = True
            worker.process.terminate()


class _Sender(Listener):
    """Sends what happens to the arms of a pack to the parent process."""

    def __init__(self, pack: Pack, sender: Connection) -> None:
        self.pack, self.sender = pack, sender
        #: arms with work to do; the others are here because one of those was created with them
        self.working = tuple(arm.name for arm in pack.arms if arm.name in pack.todo)
        self.open = set(self.working)

    def send(
        self,
        arm: str,
        state: str,
        progress: Progress | None = None,
        error: str = "",
        words: str = "",
    ) -> None:
        if arm not in self.open:
            return
        if state in LAST_WORDS:
            self.open.discard(arm)
        try:
            self.sender.send(News(arm, state, progress, error, words, self.working))
        except OSError:  # nobody listens any more: save and leave
            os.kill(os.getpid(), signal.SIGTERM)

    def send_all(self, state: str, error: str = "", words: str = "") -> None:
        for arm in self.working:
            self.send(arm, state, error=error, words=words)

    def say(self, words: str) -> None:
        self.send_all("training", words=words)

    def training(self, folder: Path, progress: Progress) -> None:
        self.send(folder.name, "training", progress)

    def testing(self, folder: Path) -> None:
        self.send(folder.name, "testing")

    def ended(self, folders: Sequence[Path], outcome: Outcome) -> None:
        if not outcome.ended:
            self.send_all("stopped")
        for folder, failure in zip(folders, outcome.failures, strict=True):
            end = _end(folder.name, failure)
            self.send(folder.name, end.state, error=end.error)


def _work(pack: Pack, job: Job, mouth: Connection) -> None:
    """The life of one process: create or resume the runs of a pack, then test them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent passes it on as SIGTERM
    torch.set_num_threads(job.threads)
    sender = _Sender(pack, mouth)
    try:
        device = pick_device(job.device)
        new = [
            (arm.run, folder)
            for arm, folder in zip(pack.arms, pack.folders, strict=True)
            if job.overwrite or not (folder / RUN).exists()
        ]
        create_runs(new, device, job.overwrite, pack=[arm.name for arm in pack.arms])
        evaluations = {
            pack.out / arm.name: Evaluation(arm.ladder or job.ladder, job.sequences, job.precision)
            for arm in pack.arms
            if arm.name in pack.todo
        }
        train_and_evaluate(pack.folders, device, sender, evaluations, job.share)
    except OutlastError as error:
        sender.send_all("failed", error=str(error))
    except Exception as error:  # the other packs go on; the parent reports it
        sender.send_all("failed", error=f"{type(error).__name__}: {error}")
        raise
