"""Trainings in processes that are forked from one that has imported everything already."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import outlast

HERE = Path(__file__).parent
#: what the first process imports, as far as it is installed
PRELOADED = {"trainer_jobs": HERE / "trainer", "lightning_jobs": HERE / "lightning"}


def run_job(job: Callable[..., None], *args: Any, env: dict[str, str] | None = None) -> Any:
    """Start a job in a process of its own."""
    source = Path(outlast.__file__).parents[1]
    paths = [*PRELOADED.values(), HERE, source, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(str(path) for path in paths if path))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED])
    process = context.Process(target=_run, args=(job, args, env or {}))
    process.start()
    return process


def free_port() -> str:
    """A port that no process uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def wait(process: Any, seconds: float = 240) -> int:
    """The exit code of a job. One that takes too long is killed."""
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
    return process.exitcode


def _run(job: Callable[..., None], args: tuple[Any, ...], env: dict[str, str]) -> None:
    os.environ.update(env)
    torch.set_num_threads(1)
    job(*args)
