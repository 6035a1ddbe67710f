"""`outlast report`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro


def main(
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional], out: Path | None = None
) -> int:
    """Make a page of pictures and tables from run folders, folders of grids or study folders.

    If a file of one of several runs is damaged, the page leaves out what it would show, and the
    exit code is 2.

    Example: outlast report runs/parity --out runs/parity/report

    Args:
        folders: Run folders, folders of a whole grid, or folders of a whole study.
        out: Where to write the page; by default a folder "report" in the first folder.
    """
    from outlast.cli.common import console
    from outlast.cli.exit_codes import MISTAKE
    from outlast.errors import bad_value
    from outlast.reporting.page import write_report
    from outlast.runs.folder import require_new_name

    if not folders:
        raise bad_value("folders", "", "at least one run folder or study folder")
    if out is not None:
        require_new_name(out)
    page, missing = write_report(folders, out)
    for words in missing:
        sys.stderr.write(f"error: {words}\n")
    console.print(f"the page: {page.resolve().as_uri()}", soft_wrap=True)
    return MISTAKE if missing else 0
