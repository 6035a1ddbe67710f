"""The configuration of the builder: `mkdocs.yml` with the patterns of its navigation written out.

An entry of the navigation is a page, or a pattern such as `how-to/*.md`. A pattern stands for all
pages that match and are not named elsewhere, in the order of their names, each under its heading.
"""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

from docs_site import STAGED

#: a line of the navigation that names pages, and its title in the navigation where it has one
ENTRY = re.compile(r"^( +)- (?:(.+): )?\"?([^\"\s]+\.md)\"?$")


class SiteError(Exception):
    """The site cannot be built; the message says what to change."""


def expanded(config: str, staged: Path = STAGED) -> str:
    """The configuration for the staged pages. Every page must have a place in the navigation."""
    lines = config.splitlines()
    entries = [match for line in lines if (match := ENTRY.match(line))]
    pages = sorted(page.relative_to(staged).as_posix() for page in staged.rglob("*.md"))
    rest = [page for page in pages if page not in {match[3] for match in entries}]
    if missing := [match[3] for match in entries if "*" not in match[3] and match[3] not in pages]:
        raise SiteError(f"mkdocs.yml names pages that are not there: {', '.join(missing)}")
    written = []
    for line in lines:
        match = ENTRY.match(line)
        if match and "*" in match[3]:
            for page in [page for page in rest if fnmatch.fnmatch(page, match[3])]:
                rest.remove(page)
                written.append(f'{match[1]}- "{heading(staged / page)}": {page}')
        else:
            written.append(line)
    if rest:
        raise SiteError(f"mkdocs.yml has no place for: {', '.join(rest)}")
    return "\n".join(written) + "\n"


def heading(page: Path) -> str:
    """The first heading of a page, without marks."""
    match = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return re.sub(r"[`*\"]", "", match[1]) if match else page.stem
