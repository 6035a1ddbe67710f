"""Child processes: messages both ways, errors with their traceback, and nobody left behind."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from outlast.errors import SpecError
from outlast.processes import Child, Parent, ProcessDiedError, portable, ready_children


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


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child(echo)
    yield child
    child.close()


def test_messages_and_errors_are_answered_until_the_child_dies(child: Child) -> None:
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
    os.kill(child.process.pid, signal.SIGINT)  # both are ignored
    os.kill(child.process.pid, signal.SIGTERM)
    time.sleep(0.1)
    assert child.process.poll() is None
    child.process.kill()
    with pytest.raises(ProcessDiedError, match=r"was ended by SIGKILL, perhaps for want of memory"):
        child.receive()
    child.send("to nobody")
    with pytest.raises(ProcessDiedError):
        child.receive()


@pytest.mark.parametrize(
    ("last", "error", "code"), [(3, ProcessDiedError, 0), ("3", TypeError, 1)], ids=["end", "error"]
)
def test_child_may_send_without_being_asked(last: Any, error: type[Exception], code: int) -> None:
    child = Child(count_up, last)
    if code == 0:
        assert [child.receive() for _ in range(3)] == [0, 1, 2]
    match = "ended with exit code 0" if code == 0 else "in count_up"
    with pytest.raises(error, match=match):
        child.receive()
    assert child.process.wait(60) == code
    child.close()


@pytest.mark.parametrize("how", ["asked", "closed"])
def test_graceful_child_saves_when_asked_and_when_the_pipe_closes(how: str, tmp_path: Path) -> None:
    child = Child(save_on_sigterm, tmp_path / "file", graceful=True)
    assert child.receive(60) == "listening"
    if how == "asked":
        child.ask_to_stop()
        child.ask_to_stop()
    else:
        child.close()
    assert child.process.wait(60) == 0
    assert (tmp_path / "file").read_text() == "saved"
    child.close()


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
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    lines = [parent.stdout.readline() for _ in range(2)]
    assert lines[0] == "the script runs\n"
    pid = int(lines[1])
    parent.kill()
    assert parent.stdout.read() == ""
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and ") Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_errors_are_sent_as_they_are_or_as_their_text() -> None:
    for error in (torch.OutOfMemoryError("a byte short"), SpecError("x=1: expected 2")):
        copy = pickle.loads(pickle.dumps(portable(error)))
        assert type(copy) is type(error)
        assert str(copy) == str(error)
        assert str(error) in copy.__notes__[0]
    copy = portable(Stubborn("this", "that"))
    assert type(copy) is RuntimeError
    assert str(copy) == "Stubborn: this and that"
