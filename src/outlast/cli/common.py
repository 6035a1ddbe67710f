"""What several verbs share: the console, files to write, tables of accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from outlast.errors import bad_value
from outlast.runs.folder import PREVIOUS_RESULTS, RUN, STUDY, check_writable
from outlast.runs.records import ResultRow

console = Console(highlight=False)


def say(words: str) -> None:
    """Print a line as it is: no markup, no wrapping."""
    console.print(words, markup=False, soft_wrap=True)


def check_out(out: Path | None) -> None:
    """A file for numbers is checked before they are measured; no folder is made for it."""
    if out is not None and (out.is_dir() or not out.parent.is_dir() or out.suffix != ".json"):
        raise bad_value("out", out, "a file in a folder that is there, its name ending in .json")
    if out is not None and out.name in (RUN, STUDY, PREVIOUS_RESULTS):
        raise bad_value("out", out, "another name: run and study folders have a file of that name")
    if out is not None:
        check_writable(out)


def accuracy_table(rows: Sequence[ResultRow], parts: Sequence[str], title: str) -> Table:
    """Mean accuracy over seeds by length, jointly and by part, and the weakest seed."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("length", "", "test", "joint", "worst seed", *parts):
        table.add_column(name, justify="right" if name != "test" else "left")
    places = dict.fromkeys((r["variant"], r["length"], r["multiple"]) for r in rows)
    for variant, length, multiple in places:
        exact = [r["exact"] for r in rows if r["length"] == length and r["variant"] == variant]
        start = (f"{length:g}", f"{multiple:g} x", variant or "")
        tested = [shares for shares in exact if shares is not None]
        if not tested:
            table.add_row(*start, "n/a", "", *("" for _ in parts))
            continue
        joint = [shares["joint"] for shares in tested]
        means = [sum(shares[p] for shares in tested) / len(tested) for p in parts]
        table.add_row(
            *start,
            f"{sum(joint) / len(joint):.3f}",
            f"{min(joint):.3f}",
            *(f"{mean:.3f}" for mean in means),
        )
    return table
