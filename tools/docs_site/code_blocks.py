"""The fenced blocks of a page: language, title, code, and why a block is not run.

A comment before a block says that tests do not run it, and why::

    <!-- not run: it needs a GPU -->

A comment ``<!-- blocks of this page are not run: why -->`` says so of all blocks of the page.
Commands that are not run are still read by the parser.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PATTERN = re.compile(
    r"(?:^<!-- not run: (?P<reason>.+?) -->\n)?"
    r"^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
WHOLE_PAGE = re.compile(r"<!-- blocks of this page are not run: (.+?) -->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block. `title` is the file that it is to be written to, if any."""

    language: str
    code: str
    title: str
    #: why tests do not run it; empty if they do
    reason: str
    #: where it stands in the page
    start: int
    end: int

    def commands(self) -> Iterator[list[str]]:
        """The words of each command of a shell block."""
        for line in self.code.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                yield words


def read_blocks(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    text = page.read_text(encoding="utf-8")
    whole = WHOLE_PAGE.search(text)
    return [
        Block(
            match["language"],
            match["code"],
            match["title"] or "",
            match["reason"] or (" ".join(whole[1].split()) if whole else ""),
            match.start(),
            match.end(),
        )
        for match in PATTERN.finditer(text)
    ]
