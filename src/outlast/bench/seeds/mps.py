"""Processes that share a GPU through NVIDIA's multi-process service (MPS), and their rate together.

The service is a daemon of its own, with folders of its own, that is there for one measurement and
ends with it. A process that holds the GPU outside the service, as the bench itself does, only has
to be idle meanwhile.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from outlast.bench.timing import Side
from outlast.processes import Child, Parent

CONTROL = "nvidia-cuda-mps-control"
#: steps that a process hands to the GPU before it waits
QUEUED = 10
#: seconds for a command to the service, for the service to end, and for processes to leave
TIMEOUT = 20.0


@contextmanager
def service() -> Iterator[dict[str, str]]:
    """A service of our own; gives the environment in which processes find it."""
    if shutil.which(CONTROL) is None:
        raise RuntimeError(f"{CONTROL} is not there")
    with _sigterm_cleans_up(), TemporaryDirectory(prefix="mps", ignore_cleanup_errors=True) as home:
        folders = {name: Path(home, name.lower()) for name in ("PIPE", "LOG")}
        for folder in folders.values():
            folder.mkdir()
        environment = {f"CUDA_MPS_{name}_DIRECTORY": str(f) for name, f in folders.items()}
        try:
            _start(environment, Path(home, "output"))
            yield environment
        finally:
            _quit(environment)


def _start(environment: Mapping[str, str], output: Path) -> None:
    # which device is used is for the processes to choose: the service shows them all
    variables = os.environ | dict(environment)
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    with output.open("wb") as out:  # a pipe would stay open for as long as the daemon lives
        command, nothing = [CONTROL, "-d"], subprocess.DEVNULL
        try:
            done = subprocess.run(
                command, env=variables, stdin=nothing, stdout=out, stderr=out, timeout=TIMEOUT
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RuntimeError(f"{CONTROL} -d: {error}") from error
    if done.returncode:
        reason = output.read_text(errors="replace").split("\n")[0]
        raise RuntimeError(f"{CONTROL} -d: {reason or f'status {done.returncode}'}")


def ask(environment: Mapping[str, str], command: str) -> str:
    """What the service answers to a command; nothing if it does not."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            [CONTROL],
            env=os.environ | dict(environment),
            input=f"{command}\n",
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        ).stdout
    return ""


def _quit(environment: Mapping[str, str]) -> None:
    """End the service; if it does not go when asked, by its process."""
    pid_file = Path(environment["CUDA_MPS_PIPE_DIRECTORY"], f"{CONTROL}.pid")
    number = pid_file.read_text().strip() if pid_file.exists() else ""
    ask(environment, "quit")
    deadline = time.monotonic() + TIMEOUT
    while number.isdigit() and _is_alive(int(number)):
        if time.monotonic() > deadline:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(number), signal.SIGKILL)
            return
        time.sleep(0.05)


def _is_alive(number: int) -> bool:
    """Whether there is such a process; one that has ended, and waits to be asked after, is none."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@contextmanager
def _sigterm_cleans_up() -> Iterator[None]:
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


def shared_rate(
    count: int, make: Callable[[], Side], seconds: float, patience: float
) -> tuple[float, bool]:
    """Steps a second of `count` processes in all, and whether the service was seen to serve them.

    Each process makes its own step, which may take `patience` seconds. None begins before all are
    ready; they step for some seconds at the same time. Where the service does not serve them, CUDA
    goes on without a word, and the processes take turns.
    """
    with service() as environment, ExitStack() as stack:
        children: list[Child] = []
        for _ in range(count):
            children.append(Child(_measure_rate, make, seconds, environment=environment))
            stack.callback(children[-1].close)
        _receive_all(children, patience)
        servers = ask(environment, "get_server_list")
        for child in children:
            child.send("start")
        rates = _receive_all(children, seconds + TIMEOUT)
        _wait_for_exits(children)
    return sum(rates), any(letter.isdigit() for letter in servers)


def _receive_all(children: Sequence[Child], seconds: float) -> list[Any]:
    """The next message of every child."""
    deadline = time.monotonic() + seconds
    messages: list[Any] = []
    for child in children:
        try:
            messages.append(child.receive(max(0.0, deadline - time.monotonic())))
        except TimeoutError as error:
            count = f"{len(messages)} of {len(children)}"
            raise RuntimeError(f"{count} processes in {seconds:.0f} s") from error
        except Exception as error:
            raise RuntimeError((str(error) or repr(error)).splitlines()[0]) from error
    return messages


def _wait_for_exits(children: Sequence[Child]) -> None:
    """Children that are done leave by themselves, so that the service sees them off."""
    deadline = time.monotonic() + TIMEOUT
    with suppress(subprocess.TimeoutExpired):
        for child in children:
            child.process.wait(max(0.0, deadline - time.monotonic()))


def _measure_rate(parent: Parent, make: Callable[[], Side], seconds: float) -> None:
    """What a child does: make a step, say so, wait for the word, and send the steps a second."""
    torch.set_num_threads(1)
    step = make()
    steps_per_second(step, 0.1)
    parent.send("ready")
    parent.receive()
    parent.send(steps_per_second(step, seconds))


def steps_per_second(step: Side, seconds: float) -> float:
    """The rate of a step over some seconds."""
    begun, steps = time.perf_counter(), 0
    while (spent := time.perf_counter() - begun) < seconds:
        for _ in range(QUEUED):
            step()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        steps += QUEUED
    return steps / spent
