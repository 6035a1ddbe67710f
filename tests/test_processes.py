"""Child processes: messages both ways, errors with their traceback, and nobody left behind."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from outlast.errors import SpecError
from outlast.processes import Child, Parent, ProcessDiedError, portable, ready_children
from tiny_runs import is_alive, wait_until


class Stubborn(Exception):
    """An error that cannot be unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def echo(parent: Parent) -> None:
    """Answer with the message; a text is an order."""

    def handle(message: Any) -> Any:
        if message == "fail":
            raise SpecError("x=1: expected 2")
        if message == "sleep":
            time.sleep(600)
        return message

    parent.answer(handle)


def count_up(parent: Parent, last: int) -> None:
    """Send some numbers, and leave."""
    for number in range(last):
        parent.send(number)


def save_on_sigterm(parent: Parent, file: Path) -> None:
    """A graceful function: SIGTERM is its order to save."""
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    parent.send("listening")
    while not received:
        time.sleep(0.01)
    file.write_text("saved")


def test_messages_and_errors_are_answered_until_the_child_dies() -> None:
    with closing(Child(echo)) as child:
        message = {"tensor": torch.arange(6).view(2, 3), "text": "as it is", "none": torch.empty(0)}
        child.send(message)
        reply = child.receive()
        assert reply["text"] == "as it is"
        assert torch.equal(reply["tensor"], message["tensor"])
        assert reply["none"].shape == (0,)
        reply["tensor"] += 1  # a tensor like any other
        child.send("fail")
        with pytest.raises(SpecError, match="x=1: expected 2") as caught:
            child.receive()
        assert str(caught.value) == "x=1: expected 2"
        assert "in handle" in caught.value.__notes__[0]
        child.send("sleep")
        assert ready_children([child], timeout=0.01) == []
        with pytest.raises(TimeoutError, match=r"no message .* in 0.01 s"):
            child.receive(timeout=0.01)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # all are ignored
            os.kill(child.process.pid, number)
        time.sleep(0.1)
        assert child.process.poll() is None
        child.process.kill()
        with pytest.raises(ProcessDiedError, match="ended by SIGKILL, perhaps for want of memory"):
            child.receive()
        child.send("to nobody")
        with pytest.raises(ProcessDiedError):
            child.receive()


def test_child_may_send_without_being_asked_and_leave() -> None:
    with closing(Child(count_up, 3)) as child:
        assert [child.receive() for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ProcessDiedError, match="ended with exit code 0"):
            child.receive()


def test_error_of_the_function_is_raised_in_the_parent() -> None:
    with closing(Child(count_up, "3")) as child:
        with pytest.raises(TypeError, match="in count_up"):
            child.receive()
        assert child.process.wait(60) == 1


@pytest.mark.parametrize("end", [Child.ask_to_stop, Child.close])
def test_graceful_child_saves_when_asked_and_when_the_pipe_closes(
    end: Callable[[Child], None], tmp_path: Path
) -> None:
    with closing(Child(save_on_sigterm, tmp_path / "file", graceful=True)) as child:
        assert child.receive(60) == "listening"
        for _ in range(2):
            end(child)
        assert child.process.wait(60) == 0
        assert (tmp_path / "file").read_text() == "saved"


SCRIPT = """
import sys, time
print("the script runs", flush=True)
sys.path.insert(0, {tests!r})
from outlast.processes import Child
from test_processes import echo
child = Child(echo)
child.send(1)
child.receive()
child.send("sleep")
print(child.process.pid, flush=True)
time.sleep(600)
"""


def test_child_does_not_rerun_the_script_and_leaves_when_its_parent_is_killed(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent)))
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "the script runs\n"
        pid = int(parent.stdout.readline())
        parent.kill()
        assert parent.stdout.read() == ""
    wait_until(lambda: not is_alive(pid))


def test_errors_are_sent_as_they_are_or_as_their_text() -> None:
    for error in (torch.OutOfMemoryError("a byte short"), SpecError("x=1: expected 2")):
        copy = pickle.loads(pickle.dumps(portable(error)))
        assert type(copy) is type(error)
        assert str(copy) == str(error)
        assert str(error) in copy.__notes__[0]
    copy = portable(Stubborn("this", "that"))
    assert type(copy) is RuntimeError
    assert str(copy) == "Stubborn: this and that"
