"""Running the arms of a study side by side in processes, each in its own run folder.

An arm that is finished is left alone, one that was interrupted goes on where it stopped; so a
study is resumed by giving the same command again.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Callable
from dataclasses import dataclass
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


def run_study(
    study: Study, arms: list[Arm], out: Path, device: str, workers: int, overwrite: bool,
    watch: Callable[[News], None],
) -> list[str]:
    """Run arms, `workers` at a time; returns the names of those that did not get to the end."""
    waiting = [a for a in arms if not _done(a, out / a.name, overwrite)]
    for arm in arms:
        if arm not in waiting:
            watch(News(arm.name, "done"))
    context = multiprocessing.get_context("spawn")
    news: Any = context.Queue()
    running: dict[str, BaseProcess] = {}
    unfinished = {a.name for a in waiting}
    told: set[str] = set()  # arms that said themselves how they ended
    threads = max(1, (os.cpu_count() or 1) // max(1, min(workers, len(waiting) or 1)))
    with signals() as asked:
        while (waiting and not asked) or running:
            while waiting and len(running) < workers and not asked:
                arm = waiting.pop(0)
                todo = (arm, out / arm.name, device, threads, study.ladder, study.sequences)
                process = context.Process(target=_work, args=(*todo, overwrite, news))
                process.start()
                running[arm.name] = process
                watch(News(arm.name, "started"))
            if asked:
                _pass_on(running)
            ended = [n for n, p in running.items() if not p.is_alive()]
            _drain(news, watch, unfinished, told, wait=0.2)
            for name in ended:
                code = running.pop(name).exitcode
                if name not in told and asked:  # asked before it could listen
                    watch(News(name, "stopped"))
                elif name not in told:  # killed, perhaps for want of memory
                    watch(News(name, "failed", error=f"its process ended with exit code {code}"))
    return sorted(unfinished)


def _done(arm: Arm, folder: Path, overwrite: bool) -> bool:
    """Whether an arm needs nothing more; one that holds another run is an error."""
    if overwrite or not (folder / RUN).exists():
        return False
    if RunSpec.read(read_run(folder)) != canonical(arm.run):
        raise RunFolderError(
            f"{folder} holds a run with other seeds or settings: "
            f"choose another --out, or start anew with --overwrite"
        )
    return finished(folder) and (folder / RESULTS).exists()


def _drain(
    news: Any, watch: Callable[[News], None], unfinished: set[str], told: set[str], wait: float
) -> None:
    try:
        while True:
            item: News = news.get(timeout=wait)
            if item.state == "done":
                unfinished.discard(item.arm)
            if item.state in ("done", "failed", "stopped"):
                told.add(item.arm)
            watch(item)
            wait = 0.01
    except queue.Empty:
        return


def _pass_on(running: dict[str, BaseProcess]) -> None:
    """Ask each process once to save and leave (Ctrl-C reaches them by itself)."""
    for process in running.values():
        if process.pid is not None and not getattr(process, "asked", False):
            process.asked = True  # type: ignore[attr-defined]
            os.kill(process.pid, signal.SIGTERM)


def _work(
    arm: Arm, folder: Path, device_name: str, threads: int, ladder: Any, sequences: int,
    overwrite: bool, news: Any,
) -> None:
    """The life of one process: begin or go on, then evaluate."""
    import torch

    from outlast.evaluate.run import evaluate_run

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent passes it on as SIGTERM
    torch.set_num_threads(threads)
    try:
        device = pick_device(device_name)
        if overwrite or not (folder / RUN).exists():
            begin(arm.run, folder, device, overwrite=overwrite)
        if not go_on(folder, device, lambda p: news.put(News(arm.name, "training", p))):
            news.put(News(arm.name, "stopped"))
            return
        news.put(News(arm.name, "testing"))
        evaluate_run(folder, ladder, sequences, device)
        news.put(News(arm.name, "done"))
    except OutlastError as error:
        news.put(News(arm.name, "failed", error=str(error)))
    except Exception as error:  # the other arms go on; the parent reports it
        news.put(News(arm.name, "failed", error=f"{type(error).__name__}: {error}"))
        raise
