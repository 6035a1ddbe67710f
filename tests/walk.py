"""How far it is from `outlast train` to the first optimiser step, in frames and files of ours.

    python tests/walk.py

A file counts if a function in it runs. Files of `kernels/` do not count, nor what runs while a
module is imported. Frames are those on the stack at the first step, without comprehensions.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import outlast
from outlast.cli import main
from outlast.train.optimiser import AdamW

HOME = Path(outlast.__file__).parent
COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
COMMAND = (
    "train", "--task", "parity(length=4)", "--model", "lstm > attention > mlp @ 16",
    "--steps", "20", "--device", "cpu",
)  # fmt: skip


class FirstStep(BaseException):
    """Ends the walk: nothing in the library may catch it."""


def our_file(frame: FrameType) -> str | None:
    """The file of a frame relative to the package, if it is ours."""
    path = Path(frame.f_code.co_filename)
    return path.relative_to(HOME).as_posix() if path.is_relative_to(HOME) else None


def is_function(frame: FrameType) -> bool:
    """Whether a frame is a function's, not the body of a module or a class."""
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame, its caller, and so on to the outermost."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def importing(frame: FrameType) -> bool:
    return any(
        each.f_code.co_filename == "<frozen importlib._bootstrap>" for each in callers(frame)
    )


@contextmanager
def files_walked() -> Iterator[set[str]]:
    """The files of ours outside `kernels/` in which a function ran meanwhile."""
    files: set[str] = set()

    def look(frame: FrameType, event: str, _: Any) -> None:
        file = our_file(frame) if event == "call" and is_function(frame) else None
        if file is None or file in files or file.startswith("kernels/"):
            return
        if not importing(frame):
            files.add(file)

    sys.setprofile(look)
    try:
        yield files
    finally:
        sys.setprofile(None)


def walk_to_first_step(out: Path) -> tuple[list[str], list[str]]:
    """The frames on the stack at the first optimiser step, outermost first, and the files."""
    frames: list[str] = []

    def update(*_: object, **__: object) -> None:
        for frame in callers(sys._getframe(1)):
            file, name = our_file(frame), frame.f_code.co_name
            if file is not None and name not in COMPREHENSIONS:
                frames.insert(0, f"{file} {name}")
        raise FirstStep

    AdamW.update = update  # type: ignore[method-assign]
    with files_walked() as files, suppress(FirstStep):
        main([*COMMAND, "--out", str(out)])
    return frames, sorted(files)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        frames, files = walk_to_first_step(Path(folder) / "run")
    for title, lines in (("frames", frames), ("files", files)):
        sys.stdout.write("\n  ".join([f"{title}: {len(lines)}", *lines]) + "\n")
