"""`python -m docs_site`: stage the pages, build the site, check its links."""

from __future__ import annotations

import argparse
import logging
import os
import posixpath
import re
import shutil
import subprocess
import sys
import time

from docs_site import DOCS, ROOT, SITE, STAGED
from docs_site.data_tables import table_page
from docs_site.link_check import problems
from docs_site.navigation import SiteError, expanded, heading
from docs_site.pages import sources, staged_text
from docs_site.reference import reference_pages

log = logging.getLogger("docs_site")
#: the configuration that the builder reads
CONFIG = STAGED.parent / "mkdocs.yml"
#: beside pages, what of docs/ the site needs
FILES = ("*.png", "*.svg", "*.csv", "*.ipynb", "*.js", "*.css")


def main() -> int:
    """Build the site; 1 if a link is dead or a page loads something from elsewhere."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(prog="docs_site", description=__doc__)
    parser.add_argument("--stage-only", action="store_true", help="write the pages, build nothing")
    started, arguments = time.monotonic(), parser.parse_args()
    try:
        stage()
        if arguments.stage_only:
            return 0
        build()
        found = problems(SITE)
    except SiteError as error:
        found = [str(error)]
    for problem in found:
        log.error("%s", problem)
    if not found:
        pages = len(list(SITE.rglob("*.html")))
        log.info("%d pages in %s, %.0f s", pages, SITE, time.monotonic() - started)
    return int(bool(found))


def stage() -> None:
    """Write every page and what it needs into the folder that the builder reads."""
    shutil.rmtree(STAGED, ignore_errors=True)
    for pattern in FILES:
        for path in DOCS.rglob(pattern):
            target = STAGED / path.relative_to(DOCS)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    for place, path in sources().items():
        _write(place, staged_text(place, path))
    for place, text in reference_pages().items():
        _write(place, text)
    for path in sorted((DOCS / "data").glob("*.csv")):
        _write(f"data/{path.stem}.md", table_page(path, _pages_with(f"data/{path.stem}.md")))
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    CONFIG.write_text(expanded(config), encoding="utf-8")


def build() -> None:
    """Let Zensical build the staged pages. Any warning is an error."""
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file"]
    environment = dict(os.environ, NO_COLOR="1")
    done = subprocess.run([*command, str(CONFIG)], cwd=ROOT, env=environment, check=False)
    if done.returncode:
        raise SiteError("the builder has warnings; they stand above")


def _write(place: str, text: str) -> None:
    path = STAGED / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _pages_with(place: str) -> list[tuple[str, str]]:
    """The pages that link to a page of data: title, and path from there."""
    found = []
    for path in sorted(STAGED.rglob("*.md")):
        page = path.relative_to(STAGED).as_posix()
        link = posixpath.relpath(place, posixpath.dirname(page) or ".")
        if re.search(rf"\]\({re.escape(link)}\)", path.read_text(encoding="utf-8")):
            found.append((heading(path), posixpath.relpath(page, posixpath.dirname(place))))
    return found


if __name__ == "__main__":
    raise SystemExit(main())
