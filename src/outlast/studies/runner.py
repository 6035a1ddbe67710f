"""Running the arms of a study side by side in processes, each in its own run folder.

An arm that is finished is left alone, one that was interrupted goes on where it stopped; so a
study is resumed by giving the same command again.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from outlast.errors import OutlastError, RunFolderError
from outlast.runs import RESULTS, RUN, read_run
from outlast.studies.base import Arm, Study
from outlast.train.loop import Progress
from outlast.train.session import begin, canonical, finished, go_on, pick_device, signals
from outlast.train.settings import RunSpec


@dataclass(frozen=True)
class News:
    """What an arm's process tells: its progress, that it is done, or what went wrong."""

    arm: str
    state: str
    progress: Progress | None = None
    error: str = ""


@dataclass
class _Worker:
    """The process of an arm, where its news come from, and what it said last."""

    process: BaseProcess
    ear: Connection
    said: str = "started"
    asked: bool = False


def run_study(
    study: Study,
    arms: list[Arm],
    out: Path,
    device: str,
    workers: int,
    overwrite: bool,
    watch: Callable[[News], None],
) -> list[str]:
    """Run arms, `workers` at a time; returns the names of those that did not get to the end."""
    waiting = unfinished_arms(arms, out, overwrite)
    for arm in arms:
        if arm not in waiting:
            watch(News(arm.name, "done"))
    context = multiprocessing.get_context("spawn")
    running: dict[str, _Worker] = {}
    unfinished = {a.name for a in waiting}
    threads = max(1, (os.cpu_count() or 1) // max(1, min(workers, len(waiting) or 1)))
    with signals() as asked:
        while (waiting and not asked) or running:
            while waiting and len(running) < workers and not asked:
                arm = waiting.pop(0)
                # a pipe for each: one that dies while it writes does not hold up the others
                ear, mouth = context.Pipe(duplex=False)
                todo = (arm, out / arm.name, device, threads, study.ladder, study.sequences)
                process = context.Process(target=_work, args=(*todo, overwrite, mouth))
                process.start()
                mouth.close()
                running[arm.name] = _Worker(process, ear)
                watch(News(arm.name, "started"))
            if asked:
                _pass_on(running)
            for news in _listen(running, bool(asked)):
                if news.state == "done":
                    unfinished.discard(news.arm)
                watch(news)
    return sorted(unfinished)


def unfinished_arms(arms: list[Arm], out: Path, overwrite: bool) -> list[Arm]:
    """The arms there is work to do for; a folder that holds another run is an error."""
    return [a for a in arms if not _done(a, out / a.name, overwrite)]


def _done(arm: Arm, folder: Path, overwrite: bool) -> bool:
    """Whether an arm needs nothing more; one that holds another run is an error."""
    if overwrite or not (folder / RUN).exists():
        return False
    # the record is spelt out anew: an argument may have come since, with a default
    if canonical(RunSpec.read(read_run(folder))) != canonical(arm.run):
        raise RunFolderError(
            f"{folder} holds a run with other seeds or settings: "
            f"choose another --out, or start anew with --overwrite"
        )
    return finished(folder) and (folder / RESULTS).exists()


def _listen(running: dict[str, _Worker], asked: bool) -> list[News]:
    """The news of a moment; an arm whose process has ended is taken off `running`."""
    names = {worker.ear: name for name, worker in running.items()}
    heard = []
    for ear in wait(list(names), timeout=0.2):
        name = names[ear]  # type: ignore[index]
        worker = running[name]
        try:
            news: News = worker.ear.recv()
            worker.said = news.state
            heard.append(news)
        except (EOFError, OSError):
            del running[name]
            worker.process.join()
            if worker.said in ("done", "failed", "stopped"):
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


def _work(
    arm: Arm,
    folder: Path,
    device_name: str,
    threads: int,
    ladder: Any,
    sequences: int,
    overwrite: bool,
    mouth: Connection,
) -> None:
    """The life of one process: begin or go on, then evaluate."""
    import torch

    from outlast.evaluate.run import evaluate_run

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent passes it on as SIGTERM
    torch.set_num_threads(threads)

    def tell(state: str, progress: Progress | None = None, error: str = "") -> None:
        try:
            mouth.send(News(arm.name, state, progress, error))
        except OSError:  # nobody listens any more: save and leave
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        device = pick_device(device_name)
        if overwrite or not (folder / RUN).exists():
            begin(arm.run, folder, device, overwrite=overwrite)
        if not go_on(folder, device, lambda p: tell("training", p)):
            tell("stopped")
            return
        tell("testing")
        evaluate_run(folder, ladder, sequences, device)
        tell("done")
    except OutlastError as error:
        tell("failed", error=str(error))
    except Exception as error:  # the other arms go on; the parent reports it
        tell("failed", error=f"{type(error).__name__}: {error}")
        raise
