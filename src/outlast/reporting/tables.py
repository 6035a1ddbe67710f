"""The tables of a report, as plain cells: the page and the Markdown file show the same ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from outlast.evaluation.statistics import LEVEL
from outlast.reporting import words
from outlast.reporting.claims import Verdict
from outlast.reporting.digest import LEVELS, Digest, Ladder, multiples_of, variants_of
from outlast.reporting.load import Run


@dataclass(frozen=True)
class Cell:
    """A value, smaller notes under and beside it, and how it is meant (a class on the page)."""

    text: str
    note: str = ""
    aside: str = ""
    tone: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Table:
    """Columns, of which the first ``leading`` name the row, and rows of cells."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    leading: int = 1

    @property
    def spans(self) -> list[int]:
        """How many rows each row's first cell stands for; 0 where one above stands for it."""
        if self.leading < 2:
            return [1] * len(self.rows)
        spans: list[int] = []
        for _, block in groupby(self.rows, key=lambda row: row[0]):
            count = len(list(block))
            spans += [count, *[0] * (count - 1)]
        return spans

    @property
    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [list(self.columns), ["---"] * len(self.columns)]
        lines += [
            [" ".join(filter(None, (c.text, c.note, c.aside))) for c in row] for row in self.rows
        ]
        escaped = [lines[0], lines[1], *([plain(text) for text in row] for row in lines[2:])]
        return "\n".join("| " + " | ".join(row) + " |" for row in escaped)


def plain(text: str) -> str:
    """Text from a file made harmless in Markdown."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#!~$])", r"\\\1", " ".join(text.split()))


def setup_table(digests: Sequence[Digest]) -> Table:
    """What each arm is: model, methods, parameters, how phase 1 went; what is not ready."""
    columns = ("arm", "model", "methods", "parameters", "steps", "seeds", "phase 1 converged")
    ready = all(d.status == "evaluated" for d in digests)
    rows = (_setup(d) if ready else (*_setup(d), _status(d)) for d in digests)
    return Table(columns if ready else (*columns, "status"), tuple(rows))


def _setup(d: Digest) -> tuple[Cell, ...]:
    run = d.run
    if run is None:
        return (Cell(d.arm.label), *[Cell(words.NONE)] * 6)
    settings = run.about.get("settings")
    steps = settings.get("steps") if isinstance(settings, dict) else None
    value, note = words.phase(d.phase)
    bad = d.phase is not None and bool(d.phase.failed or d.phase.parked)
    return (
        Cell(d.arm.label),
        Cell(run.model or words.NONE, tone="spec"),
        Cell("; ".join(run.methods) or "none", tone="spec" if run.methods else ""),
        Cell(_whole(run.about.get("parameters")), tone="number"),
        Cell(_whole(steps), tone="number"),
        _seeds(run),
        Cell(value, note, tone="number bad" if bad else "number"),
    )


def _whole(count: object) -> str:
    return f"{count:,}" if isinstance(count, int) else words.NONE


def _seeds(run: Run) -> Cell:
    """The seeds of a run; those that were parked or stopped on success are told."""
    both = {"parked": run.parked, "stopped on success": run.succeeded}
    said = ", ".join(f"{len(seeds)} {what}" for what, seeds in both.items() if seeds)
    tone = "number bad" if run.parked else "number"
    return Cell(words.numbered(run.seeds), f"({said})" if said else "", tone=tone)


def _status(d: Digest) -> Cell:
    tone = "bad" if d.diverged else "" if d.status == "evaluated" else "pending"
    return Cell(d.status, tone=tone)


def results_table(digests: Sequence[Digest]) -> Table:
    """Joint accuracy by length: mean, interval, successes; how far it holds; where it falls."""
    multiples, named = multiples_of(digests), _variant_column(digests)
    levels = tuple(f"holds {words.percent(level).removesuffix('.0')} % to" for level in LEVELS)
    heads = ("arm", *named, *(words.times(m) for m in multiples), *levels, "largest fall")
    rows = []
    for d in digests:
        for ladder in d.ladders:
            variant = [Cell(ladder.variant or "plain")] if named else []
            cells = [_summary(ladder, m) for m in multiples]
            reach = [Cell(words.effective(ladder, level), tone="number") for level in LEVELS]
            size, where = words.fall(ladder)
            end = Cell(size, where, tone="number")
            arm = Cell(d.arm.label, _reservation(d))
            rows.append((arm, *variant, *cells, *reach, end))
        if not d.ladders:
            blank = [Cell(words.NONE)] * (len(heads) - 2)
            rows.append((Cell(d.arm.label), Cell(d.status, tone="pending"), *blank))
    return Table(heads, tuple(rows), 1 + len(named))


def _reservation(d: Digest) -> str:
    """What to know of an arm beside its means: ``(1 of 4 seeds parked, step 600 of 3,000)``."""
    parked, seeds = (d.run.parked, d.run.seeds) if d.run else ({}, ())
    said = f"{len(parked)} of {len(seeds)} seeds parked" if parked else ""
    notes = ", ".join(filter(None, (said, d.progress)))
    return f"({notes})" if notes else ""


def _variant_column(digests: Sequence[Digest]) -> tuple[str, ...]:
    return ("test",) if variants_of(digests) not in ([], [None]) else ()


def _summary(ladder: Ladder, multiple: float) -> Cell:
    measure = ladder.at(multiple)
    if measure is None:
        return _absent(ladder, multiple)
    s = measure.summary
    return Cell(words.percent(s.mean), words.interval(s), words.successes(s), _tone(s.mean))


def _mean(ladder: Ladder, multiple: float, part: str) -> Cell:
    measure = ladder.at(multiple, part)
    if measure is None:
        return _absent(ladder, multiple)
    return Cell(words.percent(measure.summary.mean), tone=_tone(measure.summary.mean))


def _tone(accuracy: float) -> str:
    return "number" if accuracy >= LEVEL else "number low"


def _absent(ladder: Ladder, multiple: float) -> Cell:
    rung = ladder.rung(multiple)
    if rung is None:
        return Cell(words.NONE, tone="number", hint="not tested")
    return Cell("n/a", tone="number pending", hint=rung.reason or "")


def parts_table(digests: Sequence[Digest], parts: Sequence[str]) -> Table:
    """Each part's exact accuracy by length: mean over seeds."""
    multiples, named = multiples_of(digests), _variant_column(digests)
    heads = ("arm", *named, "part", *(words.times(m) for m in multiples))
    rows = []
    for d in digests:
        for ladder in d.ladders:
            for part in parts:
                variant = [Cell(ladder.variant or "plain")] if named else []
                cells = [_mean(ladder, m, part) for m in multiples]
                rows.append((Cell(d.arm.label), *variant, Cell(part), *cells))
    return Table(heads, tuple(rows), 2 + len(named))


def seeds_table(digests: Sequence[Digest]) -> Table:
    """Every seed's joint accuracy, the failures included, and how its phase 1 ended."""
    multiples, named = multiples_of(digests), _variant_column(digests)
    heads = ("arm", *named, "seed", "phase 1", *(words.times(m) for m in multiples))
    rows = []
    for d in digests:
        for ladder in d.ladders:
            seeds = {s for r in ladder.rungs for m in r.exact.values() for s in m.seeds}
            for seed in sorted(seeds | set(d.run.seeds if d.run else ())):
                variant = [Cell(ladder.variant or "plain")] if named else []
                cells = [_one(ladder, m, seed) for m in multiples]
                lead = (Cell(d.arm.label), *variant, _seed(d.run, seed), _phase_of(d, seed))
                rows.append((*lead, *cells))
    return Table(heads, tuple(rows), 2 + len(named))


def _seed(run: Run | None, seed: int) -> Cell:
    """A seed; one that was parked or has succeeded was measured as it was at that step."""
    both = {"parked": run.parked, "succeeded": run.succeeded} if run else {}
    said = [f"{what} at step {steps[seed]}" for what, steps in both.items() if seed in steps]
    return Cell(", ".join([str(seed), *said]))


def _phase_of(d: Digest, seed: int) -> Cell:
    if d.phase is None:
        return Cell(words.NONE)
    if seed in d.phase.failed:
        return Cell("not converged", tone="bad")
    if seed in d.phase.parked:
        return Cell("parked", tone="bad")
    return Cell("converged" if seed in d.phase.converged else "no switch yet")


def _one(ladder: Ladder, multiple: float, seed: int) -> Cell:
    measure = ladder.at(multiple)
    if measure is None:
        return _absent(ladder, multiple)
    value = measure.seeds.get(seed)
    if value is None:
        return Cell(words.NONE, tone="number", hint="not tested")
    return Cell(words.percent(value), tone=_tone(value))


def reasons(digests: Sequence[Digest]) -> list[str]:
    """Why some lengths are n/a, each reason once."""
    rungs = [(d, r) for d in digests for ladder in d.ladders for r in ladder.rungs]
    return list(dict.fromkeys(f"{d.arm.label}: {r.reason}" for d, r in rungs if r.reason))


def claims_table(verdicts: Sequence[Verdict]) -> Table:
    """Each claim with its verdict, the expected band, the measured value and the source."""
    rows = []
    for v in verdicts:
        tone = {"holds": "good", "does not hold": "bad"}.get(v.verdict, "pending")
        seeds = f"{v.seeds} seed{'s' * (v.seeds != 1)}" if v.seeds else ""
        note = ", ".join(filter(None, (v.detail, seeds)))
        verdict, measured = Cell(v.verdict, tone=f"verdict {tone}"), Cell(v.measured, note)
        rows.append((verdict, Cell(v.claim.text), Cell(v.expected), measured, Cell(v.claim.source)))
    return Table(("verdict", "claim", "expected", "measured", "source"), tuple(rows), 0)
