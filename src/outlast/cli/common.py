"""What several verbs share: the console, and files to write."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from outlast.errors import bad_value
from outlast.runs.folder import PREVIOUS_RESULTS, RUN, STUDY, check_writable

console = Console(highlight=False)


def say(words: str) -> None:
    """Print a line as it is: no markup, no wrapping."""
    console.print(words, markup=False, soft_wrap=True)


@contextmanager
def length_status() -> Iterator[Callable[[str], None] | None]:
    """A function that shows which length is being tested, for as long as it is; on a terminal."""
    if not console.is_terminal:
        yield None
        return
    with console.status("testing") as status:
        yield lambda words: status.update(f"testing {words}")


def check_out(out: Path | None) -> None:
    """A file for numbers is checked before they are measured; no folder is made for it."""
    if out is not None and (out.is_dir() or not out.parent.is_dir() or out.suffix != ".json"):
        raise bad_value("out", out, "a file in a folder that is there, its name ending in .json")
    if out is not None and out.name in (RUN, STUDY, PREVIOUS_RESULTS):
        raise bad_value("out", out, "another name: run and study folders have a file of that name")
    if out is not None:
        check_writable(out)


def wrapped(text: str, indent: str = "", further: str | None = None) -> str:
    """Each line of a text broken between words to fit the terminal.

    `indent` stands before each line, `further` before those that were broken off.
    """
    return "\n".join(
        textwrap.fill(
            line,
            console.width,
            initial_indent=indent,
            subsequent_indent=indent if further is None else further,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )
