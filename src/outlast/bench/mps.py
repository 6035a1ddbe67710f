"""Processes that share a GPU through NVIDIA's multi-process service (MPS), and their pace together.

The service is a daemon of its own, with folders of its own, that is there for one measurement and
ends with it. A process that holds the GPU outside the service, as the bench itself does, only has
to be idle meanwhile.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from outlast.bench.timing import Side

CONTROL = "nvidia-cuda-mps-control"
#: steps that a process hands to the GPU before it waits
QUEUED = 10
#: seconds for a command to the service, and for the service to end
SOON = 20.0


@contextmanager
def service() -> Iterator[dict[str, str]]:
    """A service of our own; gives the environment in which processes find it."""
    if shutil.which(CONTROL) is None:
        raise RuntimeError(f"{CONTROL} is not there")
    with _leaving_in_order(), TemporaryDirectory(prefix="mps", ignore_cleanup_errors=True) as home:
        there = {f"CUDA_MPS_{n}_DIRECTORY": str(Path(home, n.lower())) for n in ("PIPE", "LOG")}
        for folder in there.values():
            Path(folder).mkdir()
        try:
            _start(there, Path(home, "said"))
            yield there
        finally:
            _quit(there)


def _start(there: Mapping[str, str], said: Path) -> None:
    # which device is used is for the processes to choose: the service shows them all
    around = {n: v for n, v in os.environ.items() if n != "CUDA_VISIBLE_DEVICES"} | dict(there)
    with said.open("wb") as out:  # a pipe would stay open for as long as the daemon lives
        command, nothing = [CONTROL, "-d"], subprocess.DEVNULL
        try:
            done = subprocess.run(
                command, env=around, stdin=nothing, stdout=out, stderr=out, timeout=SOON
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RuntimeError(f"{CONTROL} -d: {error}") from error
    if done.returncode:
        why = said.read_text(errors="replace").split("\n")[0]
        raise RuntimeError(f"{CONTROL} -d: {why or f'status {done.returncode}'}")


def ask(there: Mapping[str, str], what: str) -> str:
    """What the service answers to a command; nothing if it does not."""
    with suppress(OSError, subprocess.SubprocessError):
        around = os.environ | dict(there)
        command = [CONTROL]
        return subprocess.run(
            command, env=around, input=f"{what}\n", capture_output=True, text=True, timeout=SOON
        ).stdout
    return ""


def _quit(there: Mapping[str, str]) -> None:
    """End the service; if it does not go when asked, by its process."""
    noted = Path(there["CUDA_MPS_PIPE_DIRECTORY"], f"{CONTROL}.pid")
    number = noted.read_text().strip() if noted.exists() else ""
    ask(there, "quit")
    until = time.monotonic() + SOON
    while number.isdigit() and _lives(int(number)):
        if time.monotonic() > until:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(number), signal.SIGKILL)
            return
        time.sleep(0.05)


def _lives(number: int) -> bool:
    """Whether there is such a process; one that has ended, and waits to be asked after, is none."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@contextmanager
def _leaving_in_order() -> Iterator[None]:
    """A request to end (SIGTERM) is an exit that cleans up, as Ctrl-C is."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not in the main thread: whoever is handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# ---- processes -----------------------------------------------------------------------------------


def shared(
    count: int, make: Callable[[], Side], seconds: float, patience: float
) -> tuple[float, bool]:
    """Steps a second of `count` processes in all, and whether the service was seen to serve them.

    Where it is not, CUDA goes on without a word, and the processes take turns.
    """
    served: list[str] = []
    with service() as there:
        paces = together(
            count,
            make,
            seconds,
            patience,
            there,
            lambda: served.append(ask(there, "get_server_list")),
        )
    return sum(paces), any(letter.isdigit() for letter in served[0])


def together(
    count: int,
    make: Callable[[], Side],
    seconds: float,
    patience: float,
    there: Mapping[str, str],
    ready: Callable[[], object] = lambda: None,
) -> list[float]:
    """Steps a second of each of `count` processes that step for some seconds at the same time.

    Each makes its own step, which may take `patience` seconds, in the environment `there`; none
    begins before all have, and `ready` has been called.
    """
    fresh = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    lines: list[Connection] = []
    done = False
    try:
        for _ in range(count):
            near, far = fresh.Pipe()
            work = (far, make, seconds, dict(there))
            processes.append(fresh.Process(target=_work, args=work, daemon=True))
            processes[-1].start()
            far.close()  # so that the end of the process is the end of the line
            lines.append(near)
        _hear(lines, patience)
        ready()
        for line in lines:
            line.send(None)
        found: list[float] = _hear(lines, seconds + SOON)
        done = True
        return found
    finally:
        _end(processes, in_order=done)


def _hear(lines: Sequence[Connection], seconds: float) -> list[Any]:
    """The next word on every line."""
    until = time.monotonic() + seconds
    found: list[Any] = []
    for line in lines:
        if not line.poll(max(0.0, until - time.monotonic())):
            raise RuntimeError(f"{len(found)} of {len(lines)} processes in {seconds:.0f} s")
        try:
            found.append(line.recv())
        except EOFError as error:
            raise RuntimeError("a process ended without a word") from error
        if isinstance(found[-1], str):
            raise RuntimeError(found[-1])
    return found


def _end(processes: Sequence[BaseProcess], in_order: bool) -> None:
    """Those that are done leave by themselves, so that the service sees them off; end the rest."""
    until = time.monotonic() + SOON
    for process in processes:
        if in_order:
            process.join(max(0.0, until - time.monotonic()))
        if process.pid is not None and process.is_alive():
            process.kill()
    for process in processes:
        if process.pid is not None:
            process.join()


def _work(
    line: Connection, make: Callable[[], Side], seconds: float, there: dict[str, str]
) -> None:
    """One process: make a step, say so, wait for the word, and say how many a second there were."""
    os.environ.update(there)  # read when CUDA is first used, which is below
    torch.set_num_threads(1)
    with suppress(BrokenPipeError, EOFError):  # nobody is there to hear
        try:
            step = make()
            pace(step, 0.1)
        except Exception as error:
            line.send((str(error) or repr(error)).split("\n")[0])
            return
        line.send(None)
        line.recv()
        line.send(pace(step, seconds))


def pace(step: Side, seconds: float) -> float:
    """Steps a second."""
    begun, steps = time.perf_counter(), 0
    while (spent := time.perf_counter() - begun) < seconds:
        for _ in range(QUEUED):
            step()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        steps += QUEUED
    return steps / spent
