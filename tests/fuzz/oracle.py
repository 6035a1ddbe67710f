"""What must hold of any input: it is refused in one clear error, or it works. Nothing else.

A case is one input. The oracle runs it in a folder of its own and says what is wrong:

- a *traceback*: any exception but `OutlastError`;
- a *hang*: it takes longer than `LIMIT` seconds;
- a *leftover*: it was refused, and a file was made, changed or deleted, or a lock is held;
- *nonsense*: it was accepted, and what came of it is not sane. The case itself checks that.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import signal
import stat
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from unittest import mock

from outlast.cli import main
from outlast.cli.exit_codes import MISTAKE
from outlast.errors import OutlastError

#: seconds after which a case hangs
LIMIT = 20
#: bytes of memory that every case believes to be free: what is larger is refused, and not made
FREE = 2**27
#: the most characters of an error
LONGEST_ERROR = 3000


@dataclass(frozen=True)
class Case:
    """One input: the line that a person would type, and what is done with it in a folder.

    `action` raises `OutlastError` if the input is refused, and `Nonsense` if it was not and should
    have been.
    """

    line: str
    action: Callable[[Path], object]
    #: makes what has to be in the folder before
    prepare: Callable[[Path], object] = lambda home: None


Generator = Callable[[Random], Case]


class Nonsense(Exception):
    """What was accepted is not sane."""


class Hang(BaseException):
    """The time of a case is over."""


def check(holds: object, problem: str) -> None:
    """Raise if an accepted input has come to something that is not sane."""
    if not holds:
        raise Nonsense(problem)


def judge(case: Case, home: Path) -> tuple[bool, str | None]:
    """Whether a case was accepted, and what is wrong with how it went, if anything."""
    case.prepare(home)
    before, here = contents(home), Path.cwd()
    os.chdir(home)
    try:
        with time_limit(), small_machine():
            case.action(home)
        return True, None
    except OutlastError as error:
        return False, _about_error(str(error), case.line) or _about_files(before, contents(home))
    except Nonsense as error:
        return True, f"nonsense accepted: {error}"
    except Hang:
        return False, f"hang: over {LIMIT} s"
    except Exception:
        return False, f"traceback: {traceback.format_exc(limit=-6)}"
    finally:
        os.chdir(here)


def _about_error(text: str, line: str) -> str | None:
    if not text.strip():
        return "an error without words"
    most = LONGEST_ERROR + 2 * len(line)  # the parser of flags echoes what it was given
    return f"an error of {len(text):,} characters" if len(text) > most else None


def _about_files(before: dict[str, str], after: dict[str, str]) -> str | None:
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    # a folder that was there keeps its lock; only a lock that is held is in the way
    left = sorted(n for n in changed if not (Path(n).name == ".lock" and _was_there(n, before)))
    return f"leftovers, though it was refused: {', '.join(left)}" if left else None


def _was_there(lock: str, before: dict[str, str]) -> bool:
    return str(Path(lock).parent) in before


def contents(home: Path) -> dict[str, str]:
    """Every path in a folder with what it is: a digest, a target, or a kind."""
    found = {}
    for folder, names, files in os.walk(home):
        for name in [*names, *files]:
            path = Path(folder) / name
            mode = path.lstat().st_mode
            what = str(stat.S_IFMT(mode))
            if stat.S_ISREG(mode):
                what = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
            found[str(path.relative_to(home))] = what
    return found


@contextlib.contextmanager
def time_limit(seconds: int = LIMIT) -> Iterator[None]:
    """Raise `Hang` in the main thread when the time is over."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def small_machine() -> Iterator[None]:
    """A machine with little memory: what would take more is refused and never allocated."""
    with contextlib.ExitStack() as patches:
        for module in ("outlast.machine", "outlast.train.memory", "outlast.train.waves"):
            patches.enter_context(mock.patch(f"{module}.free_memory", return_value=float(FREE)))
        patches.enter_context(mock.patch("outlast.machine.LITTLE", 2**20))
        yield


def command(*words: str) -> str:
    """Run a command in this process; what it prints. A mistake is raised as the error it is."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", "strict", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(list(words))
        except SystemExit as end:  # of the parser of flags, or help
            code = end.code if isinstance(end.code, int) else 0
    printed, errors = (pipe.buffer.getvalue().decode("utf-8", "replace") for pipe in (out, err))
    check("Traceback (most recent call last)" not in errors + printed, "a traceback was printed")
    if code == MISTAKE:
        raise OutlastError(errors.strip())
    check(code in (0, 1), f"exit code {code}")
    return printed
