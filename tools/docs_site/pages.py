"""From the Markdown of the repository to the Markdown of the site.

GitHub shows the same pages, so they are written for it. Four things differ in the site. Files from
outside `docs/` have a place among the pages. A link to a data file leads to its table. A list or
table that follows a line of text needs an empty line before it. A bar in code inside a table is not
escaped.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from docs_site import DOCS, ROOT
from docs_site.markdown import plain_bars

#: pages from outside docs/, and where they stand in the site
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
}
FENCE = re.compile(r"^ *(```|~~~)")
LINK = re.compile(r"(\]\()([^)\s#]*)((?:#[^)\s]*)?\))")
LIST, TABLE = re.compile(r" *([-*]|\d+\.) "), re.compile(r"\|")


def sources() -> dict[str, Path]:
    """Every hand-written page by its path in the site."""
    pages = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
    for path, place in ELSEWHERE.items():
        pages.setdefault(place, ROOT / path)
    return pages


def site_path(path: Path) -> str:
    """Where a file of the repository stands in the site. A data file has a page."""
    relative = path.relative_to(ROOT).as_posix()
    if relative in ELSEWHERE:
        return ELSEWHERE[relative]
    inside = relative.removeprefix("docs/")
    if inside == relative:
        raise ValueError(f"{relative}: not part of the site; link to a page or a picture of docs/")
    return inside.removesuffix(".csv") + ".md" if inside.endswith(".csv") else inside


def staged_text(place: str, path: Path) -> str:
    """The Markdown of a page as the site builder wants it."""
    pieces = []
    for is_code, text in _split_code(path.read_text(encoding="utf-8")):
        pieces.append(text if is_code else _spaced(_relinked(text, place, path)))
    return "".join(pieces)


def _split_code(text: str) -> list[tuple[bool, str]]:
    """A text cut into prose and fenced code, in order."""
    pieces: list[tuple[bool, str]] = []
    inside = False
    for line in text.splitlines(keepends=True):
        fence = FENCE.match(line) is not None
        if not pieces or (fence and not inside):
            pieces.append((fence, ""))
        pieces[-1] = (pieces[-1][0], pieces[-1][1] + line)
        if fence:
            inside = not inside
            if not inside:
                pieces.append((False, ""))
    return pieces


def _relinked(text: str, place: str, path: Path) -> str:
    """Links between files of the repository as links between pages of the site."""

    def relink(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        there = site_path(Path(os.path.normpath(path.parent / target)))
        return before + posixpath.relpath(there, posixpath.dirname(place) or ".") + after

    return LINK.sub(relink, text)


def _spaced(text: str) -> str:
    """An empty line before each list or table that follows a line of text; bars of tables plain."""
    lines: list[str] = []
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        for start in (LIST, TABLE):
            # within a list, a line that is indented goes on with an entry
            begins = start.match(line) and not start.match(before) and not before.startswith("  ")
            if begins and before.strip():
                lines.append("")
        lines.append(plain_bars(line) if TABLE.match(line) else line)
    return "\n".join(lines)
