"""`python -m docs_site.notebook`: the tutorial as a notebook, cell by cell from the page.

A shell block becomes a cell of commands. A block with a title becomes a cell that writes that file.
A block that tests do not run stays text. Outputs are not stored.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

from docs_site import DOCS
from docs_site.code_blocks import Block, read_blocks

PAGE, NOTEBOOK = DOCS / "tutorial.md", DOCS / "tutorial.ipynb"


def notebook_text(page: Path = PAGE) -> str:
    """The notebook of a page, as the file has it."""
    text, cells, at = page.read_text(encoding="utf-8"), [], 0
    for block in read_blocks(page):
        if block.reason:
            continue  # stays in the prose
        cells += [("markdown", text[at : block.start]), *_code_cells(block)]
        at = block.end
    cells.append(("markdown", text[at:]))
    return _written([(kind, source.strip()) for kind, source in cells if source.strip()])


def _code_cells(block: Block) -> list[tuple[str, str]]:
    if block.title:
        folder = PurePosixPath(block.title).parent
        make = f'from pathlib import Path\n\nPath("{folder}").mkdir(exist_ok=True)'
        return [("code", make), ("code", f"%%writefile {block.title}\n{block.code}")]
    if block.language == "python":
        return [("code", block.code)]
    if block.language != "bash":
        return [("markdown", f"```{block.language}\n{block.code}```")]
    lines = [
        f"%{line}" if line.startswith("pip ") else f"!{line}" for line in block.code.splitlines()
    ]
    return [("code", "\n".join(lines))]


def _written(cells: list[tuple[str, str]]) -> str:
    written: list[dict[str, Any]] = []
    for number, (kind, source) in enumerate(cells):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        written.append(cell | {"source": source.splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {
        "cells": written,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook_text(), encoding="utf-8")
