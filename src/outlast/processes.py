"""Child processes: each runs one function, in a Python of its own at the other end of a pipe.

    def double(parent: Parent) -> None:            # in a module that the child can import
        parent.answer(lambda number: 2 * number)

    child = Child(double)
    child.send(21)
    child.receive()                                # 42, or the error that the child met
    child.close()

What holds for every child:

- It does not run the caller's script again, as a process of `multiprocessing` does. So the script
  may train without a guard, but the child knows no function and no task of that script.
- It ignores Ctrl-C. The parent decides what an interrupt means for its children.
- It leaves when the pipe closes. So none is left behind, whatever happens to the parent.
- Its death is an error in the parent that names the signal or the exit code (`ProcessDiedError`).
- Its exceptions are raised in the parent, with the child's traceback as a note.
- What it prints goes to stderr.
"""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from signal import SIGKILL, SIGTERM, Signals
from threading import Thread
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from outlast.errors import OutlastError

#: the program of a child: `-c PROGRAM PIPE GRACEFUL PATH...`. Signals come first, as imports take
#: seconds. It finds modules where the parent finds them
PROGRAM = """
import signal, sys
number, graceful = int(sys.argv[1]), sys.argv[2] == "graceful"
signal.signal(signal.SIGINT, signal.SIG_IGN)
if not graceful:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
sys.path[:] = sys.argv[3:]
from multiprocessing.connection import Connection
from outlast.processes import run_child
run_child(Connection(number), graceful)
"""
#: seconds between two looks at whether a silent child is still alive
LOOK = 1.0


class ProcessDiedError(OutlastError, RuntimeError):
    """A child that ended without an answer; `how` says by which signal, or with which exit code.

    `was_killed` says whether it was ended by SIGKILL, as the system does if memory runs out.
    """

    def __init__(self, code: int) -> None:
        self.was_killed = code == -SIGKILL
        how = f"was ended by {Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self.how = how + ", perhaps for want of memory" * self.was_killed
        super().__init__(f"a child process {self.how}")


class Child:
    """The parent's end of the pipe to a child that runs ``function(parent, *arguments)``.

    A `graceful` child has something to save: SIGTERM, SIGHUP and the end of the pipe ask it to
    leave, and its function decides how. Any other child ignores both signals and exits when the
    pipe closes.
    """

    def __init__(
        self,
        function: Callable[..., None],
        *arguments: Any,
        graceful: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.graceful, self.asked_to_stop = graceful, False
        self.connection, far_end = Pipe()
        try:
            self.process = start_program(far_end, graceful, environment or {})
        finally:
            far_end.close()  # so that the end of the child is the end of the pipe
        self.send((function, arguments))

    def send(self, message: Any) -> None:
        """Send a message. If the child has died, `receive` will say so."""
        data = _encode(message)
        with suppress(OSError):
            self.connection.send_bytes(data)

    def receive(self, timeout: float | None = None) -> Any:
        """The next message; by default it waits for as long as the child lives.

        Raises the child's exception, `ProcessDiedError`, or `TimeoutError` after `timeout` seconds.
        """
        if not ready_children([self], timeout):
            raise TimeoutError(f"no message from a child process in {timeout} s")
        try:
            if not self.connection.poll():
                raise EOFError  # it is dead, but a process that it started holds the pipe open
            message = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            raise ProcessDiedError(self.process.wait()) from None
        if isinstance(message, _Failure):
            raise message.error
        return message

    def ask_to_stop(self) -> None:
        """Ask a graceful child to save and leave; once, however often this is called."""
        if not self.asked_to_stop:
            self.asked_to_stop = True
            self.process.terminate()

    def close(self) -> None:
        """Close the pipe. A graceful child saves and leaves by itself, any other is ended now."""
        self.connection.close()
        if not self.graceful:
            self.process.kill()
            self.process.wait()


def ready_children(children: Sequence[Child], timeout: float | None = None) -> list[Child]:
    """Those with a message, or at their end, as soon as there is one; none after `timeout`."""
    deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
    while True:
        left = max(0.0, deadline - time.monotonic())
        readable = wait([child.connection for child in children], min(LOOK, left))
        ready = [c for c in children if c.connection in readable or c.process.poll() is not None]
        if ready or left <= LOOK:
            return ready


def start_program(
    far_end: Connection, graceful: bool, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start Python with the child's end of the pipe, in a session that no terminal interrupts."""
    number, kind = far_end.fileno(), "graceful" if graceful else "simple"
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(number), kind, *sys.path],
        pass_fds=[number],
        env=os.environ | dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=2,
        start_new_session=True,
    )


class Parent:
    """The child's end of the pipe. It reads all the time, and so learns when the pipe closes."""

    def __init__(self, connection: Connection, graceful: bool) -> None:
        self._connection, self._graceful = connection, graceful
        self._inbox: SimpleQueue[bytes | None] = SimpleQueue()
        Thread(target=self._listen, daemon=True).start()

    def send(self, message: Any) -> None:
        """Send a message; if the parent is gone, `_listen` ends the child."""
        data = _encode(message)
        with suppress(OSError):
            self._connection.send_bytes(data)

    def send_failure(self, error: Exception) -> None:
        """Send an exception, which the parent's `receive` raises."""
        self.send(_Failure(portable(error)))

    def receive(self) -> Any:
        """The next message of the parent; leaves when the pipe is closed."""
        data = self._inbox.get()
        if data is None:
            sys.exit()
        return pickle.loads(data)

    def answer(self, handle: Callable[[Any], Any]) -> NoReturn:
        """Answer each message with what `handle` returns for it, or with its exception."""
        while True:
            try:
                self.send(handle(self.receive()))
            except Exception as error:
                self.send_failure(error)

    def _listen(self) -> None:
        with suppress(Exception):  # most often EOFError: the parent closed the pipe, or is gone
            while True:
                self._inbox.put(self._connection.recv_bytes())
        if not self._graceful:
            os._exit(0)
        self._inbox.put(None)
        os.kill(os.getpid(), SIGTERM)


def run_child(connection: Connection, graceful: bool) -> None:
    """The life of a child: run the function that the first message names."""
    os.set_inheritable(connection.fileno(), False)
    parent = Parent(connection, graceful)
    try:
        function, arguments = parent.receive()
        function(parent, *arguments)
    except Exception as error:
        parent.send_failure(error)
        sys.exit(1)


@dataclass(frozen=True)
class _Failure:
    """A message that is raised where it arrives."""

    error: Exception


def portable(error: Exception) -> Exception:
    """The exception, or its text if it cannot be pickled; its traceback is a note."""
    note = "in a child process:\n" + "".join(traceback.format_exception(error))
    try:
        copy: Exception = pickle.loads(_encode(error))
    except Exception:
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.add_note(note)
    return copy


# ---- messages: pickled, with tensors as arrays, as a container may have little shared memory -----


def _encode(message: Any) -> bytes:
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=5)
    pickler.dispatch_table = copyreg.dispatch_table | {Tensor: _reduce_tensor}
    pickler.dump(message)
    return buffer.getvalue()


def _reduce_tensor(tensor: Tensor) -> tuple[Callable[..., Tensor], tuple[np.ndarray]]:
    return _to_tensor, (tensor.numpy(),)


def _to_tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array)
