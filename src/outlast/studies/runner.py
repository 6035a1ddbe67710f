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
from outlast.evaluation.run import evaluate_run, holds_test
from outlast.runs import RUN, read_run
from outlast.studies.base import Arm, Study
from outlast.train.rows import alike
from outlast.train.run_state import Progress
from outlast.train.session import (
    begin_all,
    canonical,
    diverged,
    finished,
    go_on_together,
    pick_device,
    signals,
    tested,
)
from outlast.train.settings import RunSpec
from outlast.train.workers import usable_threads

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
        found.setdefault(alike(canonical(arm.run)), []).append(arm)
    return [tuple(pack) for pack in found.values()]


def needed(pack: Sequence[Arm], out: Path, todo: Collection[str]) -> tuple[Arm, ...]:
    """The arms of a pack with work to do, and those that one of them was begun with."""
    kept = set(todo)
    for arm in pack:
        if arm.name in todo and (out / arm.name / RUN).exists():
            begun = read_run(out / arm.name).get("pack")
            # a record that does not say is an older one: all were stepped then
            kept |= {a.name for a in pack if not isinstance(begun, list) or a.name in begun}
    return tuple(a for a in pack if a.name in kept)


def unfinished_arms(
    arms: list[Arm], out: Path, overwrite: bool, study: Study | None = None
) -> list[Arm]:
    """The arms there is work to do for; a folder that holds another run is an error.

    With a study, one that has been tested by less than the study's test is tested again.
    """

    def tested_in_full(arm: Arm) -> bool:
        return study is None or holds_test(
            out / arm.name, arm.ladder or study.ladder, study.sequences
        )

    return [a for a in arms if not (_done(a, out / a.name, overwrite) and tested_in_full(a))]


def _done(arm: Arm, folder: Path, overwrite: bool) -> bool:
    """Whether an arm needs nothing more; one that holds another run is an error."""
    if overwrite or not (folder / RUN).exists():
        return False
    # the record is spelt out anew: an argument may have come since, with a default
    there, here = (_flat(canonical(r)) for r in (RunSpec.read(read_run(folder)), arm.run))
    if there != here:
        other = [f"{n}={there[n]}, not {here[n]}" for n in here if there[n] != here[n]]
        raise RunFolderError(
            f"{folder} holds a run with other seeds or settings ({'; '.join(other)}): "
            f"choose another --out, or start anew with --overwrite"
        )
    return finished(folder) and tested(folder)


def _flat(run: RunSpec) -> dict[str, str]:
    """Everything that decides a run, each as a person would write it."""
    values = run.to_json()
    values |= values.pop("settings")
    return {
        name: ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
        for name, value in values.items()
    }


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


def _work(pack: Pack, job: Job, mouth: Connection) -> None:
    """The life of one process: begin or go on, then evaluate."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent passes it on as SIGTERM
    torch.set_num_threads(job.threads)
    working = tuple(a.name for a in pack.arms if a.name in pack.todo)
    open_ends = set(working)

    def tell(
        arm: str, state: str, progress: Progress | None = None, error: str = "", words: str = ""
    ) -> None:
        if arm not in open_ends:  # it was at its end before, and is here for the others' sake
            return
        if state in LAST_WORDS:
            open_ends.discard(arm)
        try:
            mouth.send(News(arm, state, progress, error, words, working))
        except OSError:  # nobody listens any more: save and leave
            os.kill(os.getpid(), signal.SIGTERM)

    def tell_all(state: str, error: str = "", words: str = "") -> None:
        for arm in pack.arms:
            tell(arm.name, state, error=error, words=words)

    try:
        device = pick_device(job.device)
        new = [
            (arm.run, folder)
            for arm, folder in zip(pack.arms, pack.folders, strict=True)
            if job.overwrite or not (folder / RUN).exists()
        ]
        begin_all(new, device, job.overwrite, pack=[arm.name for arm in pack.arms])
        ended, failures = go_on_together(
            pack.folders,
            device,
            lambda folder, progress: tell(folder.name, "training", progress),
            lambda words: tell_all("training", words=words),
            job.share,
        )
        if not ended:
            tell_all("stopped")
            return
        for arm, folder, failure in zip(pack.arms, pack.folders, failures, strict=True):
            if arm.name in open_ends:
                tell(arm.name, "testing")
                ladder = arm.ladder or job.ladder
                evaluate_run(folder, ladder, job.sequences, device, in_precision=job.precision)
                end = _end(arm.name, failure)
                tell(arm.name, end.state, error=end.error)
    except OutlastError as error:
        tell_all("failed", error=str(error))
    except Exception as error:  # the other packs go on; the parent reports it
        tell_all("failed", error=f"{type(error).__name__}: {error}")
        raise
