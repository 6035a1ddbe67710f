"""The table of results that train, resume and eval show, and what is said below it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from outlast.cli.common import say, wrapped
from outlast.cli.tables import Column, show_table
from outlast.runs.folder import RESULTS
from outlast.runs.records import ResultRow, is_tested, read_run
from outlast.runs.spec import seed_words


def command(verb: str, folders: Sequence[Path]) -> str:
    """A command on some folders, as it can be typed."""
    return shlex.join(["outlast", verb, *map(str, folders)])


def show_results(folder: Path, rows: Sequence[ResultRow], out: Path | None = None) -> None:
    """The table of accuracy, and where to look next."""
    say("")
    if any(row.get("bits") for row in rows):
        show_bits(rows)
    else:
        show_accuracies(rows, read_run(folder).parts)
    for remark in remarks(rows):
        say(wrapped(remark, "", "  "))
    pages = "" if out else f"; a page of pictures: {command('report', [folder])}"
    say(f"\n{out or folder / RESULTS} has every seed{pages}")


def show_accuracies(rows: Sequence[ResultRow], parts: Sequence[str]) -> None:
    """Mean accuracy over seeds by length, jointly and by part, and the weakest seed."""
    columns = [Column("length", "number"), Column("", "number"), Column("test")]
    columns += [Column("joint", "number"), Column("worst seed", "number", 1)]
    columns += [Column(part, "number", 2 + index) for index, part in enumerate(parts)]
    columns += [Column("distance", "number"), Column("NaN", "number")]
    places = dict.fromkeys((r["variant"], r["length"], r["multiple"]) for r in rows)
    table = []
    for variant, length, multiple in places:
        rung = [r for r in rows if r["length"] == length and r["variant"] == variant]
        tested = [r["exact"] for r in rung if r["exact"] is not None]
        start = [f"{length:g}", f"{multiple:g} x", variant or ""]
        if not tested:
            table.append([*start, "n/a", "", *("" for _ in parts), "", ""])
            continue
        joint = [exact["joint"] for exact in tested]
        means = [sum(exact[part] for exact in tested) / len(tested) for part in parts]
        shares = [f"{number:.3f}" for number in (sum(joint) / len(joint), min(joint), *means)]
        nan = sum(row.get("nan", 0.0) for row in rung) / len(tested)
        far = [mean for row in rung for mean in row.get("distance", {}).values()]
        distance = f"{sum(far) / len(far):.3f}" if far else ""
        table.append([*start, *shares, distance, f"{nan:.2g}" if nan else ""])
    # these are shown only where they say something
    optional = ("test", "distance", "NaN")
    used = [i for i, c in enumerate(columns) if c.name not in optional or any(r[i] for r in table)]
    show_table(
        [columns[i] for i in used],
        [[row[i] for i in used] for row in table],
        "share of sequences with every answer right",
    )


def show_bits(rows: Sequence[ResultRow]) -> None:
    """Mean bits per byte over seeds by context length, of all bytes and by part."""
    parts = list(dict.fromkeys(part for row in rows for part in row.get("bits") or ()))
    counts = next(row["bytes"] for row in rows if row.get("bytes")) or {}
    columns = [Column("context", "number"), Column("", "number")]
    columns += [Column(parts[0], "number"), Column("worst seed", "number", 1)]
    columns += [Column(part, "number", 2 + index) for index, part in enumerate(parts[1:])]
    table = []
    for length, multiple in dict.fromkeys((r["length"], r["multiple"]) for r in rows):
        tested = [b for r in rows if r["length"] == length and (b := r.get("bits"))]
        by_part = [[bits[part] for bits in tested if part in bits] for part in parts]
        means = [f"{sum(each) / len(each):.3f}" if each else "n/a" for each in by_part]
        worst = f"{max(by_part[0]):.3f}" if by_part[0] else ""
        table.append([f"{length:g}", f"{multiple:g} x", means[0], worst, *means[1:]])
    show_table(columns, table, "bits per byte (lower is better), the same bytes at each length")
    say(wrapped("bytes: " + ", ".join(f"{part} {counts.get(part, 0):,}" for part in parts)))


def remarks(rows: Sequence[ResultRow]) -> list[str]:
    """Why a length could not be tested, who gave NaN answers, and which seeds were left early."""
    lines = []
    for row in rows:
        if not is_tested(row):
            place = f"length {row['length']:g} ({row['multiple']:g} x)"
            lines.append(f"n/a at {place}: {row.get('reason') or 'the results do not say why'}")
    if any(row.get("distance") for row in rows):
        lines.append(
            "distance: of the outputs to the right distribution, as total variation; 0 is the best"
        )
    broken = dict.fromkeys(row["seed"] for row in rows if row.get("nan") and "seed" in row)
    if broken:
        seeds = f"seed{'s' * (len(broken) > 1)} {seed_words(tuple(broken))}"
        lines.append(
            f"NaN: share of the answers that are NaN or all -inf ({seeds}); they count as wrong"
        )
    for row in rows:
        if "parked" in row:
            reason = f"its loss or a weight was not finite after step {row['parked']}"
            lines.append(f"seed {row.get('seed')} was parked: {reason}")
    for row in rows:
        if "succeeded" in row:
            left = f"succeeded at step {row['succeeded']} and was left as it was then"
            lines.append(f"seed {row.get('seed')} {left}")
    return list(dict.fromkeys(lines))
