"""The code of a how-to: its blocks, and a stock script with the printed diff applied."""

from __future__ import annotations

import re
from pathlib import Path

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


def blocks(page: str, language: str) -> list[str]:
    text = (HOW_TO / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def delayed_script(page: str) -> str:
    """The stock script of a page with its diff applied. The diff adds an import on top."""
    stock, (diff,) = blocks(page, "python")[0], blocks(page, "diff")
    lines = diff.splitlines()
    assert len(lines) <= 3, "the diff of a how-to has at most three lines"
    first, removed, added = lines
    assert first.startswith("+import ")
    assert removed.startswith("-")
    assert added.startswith("+")
    assert stock.count(removed[1:] + "\n") == 1
    return f"{first[1:]}\n{stock.replace(removed[1:], added[1:])}"
