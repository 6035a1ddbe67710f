"""Small pieces of Markdown that the generated pages share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence

#: code within a line
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar or a line break inside a cell does not end it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return plain_bars(re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split())))


def plain_bars(line: str) -> str:
    """A line of a table for the site: GitHub wants a bar in code escaped, the builder does not."""
    return CODE.sub(lambda match: match[0].replace(r"\|", "|"), line)


def code(text: str) -> str:
    """Text as code; none for no text."""
    return f"`{text}`" if text else ""


def from_docstring(docstring: str) -> str:
    """A docstring as Markdown, without its section of arguments.

    Paragraphs, lists and ``code`` are the same in both. A block after ``::`` is indented in both.
    A table between lines of ``=`` is kept as it is written.
    """
    text = re.split(r"\n(?:Args|Returns|Raises):\n", inspect.cleandoc(docstring))[0]
    paragraphs = []
    for paragraph in text.rstrip().split("\n\n"):
        if re.match(r"=+ +=+", paragraph):
            rows = [line for line in paragraph.split("\n") if set(line) - set("= ")]
            paragraph = "\n".join(f"    {row}" for row in rows)
        paragraphs.append(re.sub(r"::$", ":", paragraph))
    return re.sub(r"^::?\n", "", "\n\n".join(paragraphs)).replace("\n\n:\n\n", "\n\n") + "\n"
