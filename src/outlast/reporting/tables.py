"""The tables of a report, as plain cells: the page and the Markdown file show the same ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from outlast.evaluation.statistics import LEVEL
from outlast.reporting import formatting
from outlast.reporting.claims import Verdict
from outlast.reporting.load import Run
from outlast.reporting.summary import (
    LEVELS,
    ArmSummary,
    Ladder,
    bits_parts_of,
    multiples_of,
    variants_of,
)

STATED_AFTER = "(stated after the numbers)"
#: what the mark means; for the page and the Markdown file
STATED_AFTER_MEANS = (
    "“Stated after the numbers”: the words, the band or the arm were chosen when numbers of ours "
    "were already known. Such a claim describes what was seen. Fresh seeds would have to test it. "
    "The other claims are those of their source, or were written first."
)


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


def setup_table(arms: Sequence[ArmSummary]) -> Table:
    """What each arm is: model, methods, parameters, how phase 1 went; what is not ready."""
    columns = ("arm", "model", "methods", "parameters", "steps", "seeds", "phase 1")
    ready = all(arm.status == "evaluated" for arm in arms)
    rows = (_setup(arm) if ready else (*_setup(arm), _status(arm)) for arm in arms)
    return Table(columns if ready else (*columns, "status"), tuple(rows))


def _setup(arm: ArmSummary) -> tuple[Cell, ...]:
    run = arm.run
    if run is None:
        return (Cell(arm.label), *[Cell(formatting.NONE)] * 6)
    specs = run.record.short
    value, note = formatting.phase(arm.phase)
    bad = arm.phase is not None and bool(arm.phase.failed or arm.phase.parked)
    return (
        Cell(arm.label),
        Cell(specs.model, tone="spec"),
        Cell("; ".join(specs.methods) or "none", tone="spec" if specs.methods else ""),
        Cell(f"{run.record.parameters:,}", tone="number"),
        Cell(f"{run.record.settings.steps:,}", tone="number"),
        _seeds(run),
        Cell(value, note, tone="number bad" if bad else "number"),
    )


def _seeds(run: Run) -> Cell:
    """The seeds of a run; those that were parked or stopped on success are told."""
    both = {"parked": run.parked, "stopped on success": run.succeeded}
    said = ", ".join(f"{len(seeds)} {what}" for what, seeds in both.items() if seeds)
    tone = "number bad" if run.parked else "number"
    return Cell(formatting.numbered(run.seeds), f"({said})" if said else "", tone=tone)


def _status(arm: ArmSummary) -> Cell:
    tone = "bad" if arm.diverged else "" if arm.status == "evaluated" else "pending"
    return Cell(arm.status, tone=tone)


def results_table(arms: Sequence[ArmSummary]) -> Table:
    """Joint accuracy by length: mean, interval, successes; how far it holds; where it falls."""
    multiples, named = multiples_of(arms), _variant_column(arms)
    levels = tuple(f"holds {formatting.percent(level).removesuffix('.0')} % to" for level in LEVELS)
    heads = ("arm", *named, *(formatting.times(m) for m in multiples), *levels, "largest fall")
    rows = []
    for arm in arms:
        for ladder in arm.ladders:
            variant = [Cell(ladder.variant or "plain")] if named else []
            cells = [_summary(ladder, m) for m in multiples]
            reach = [Cell(formatting.effective(ladder, level), tone="number") for level in LEVELS]
            size, lengths = formatting.fall(ladder)
            end = Cell(size, lengths, tone="number")
            label = Cell(arm.label, _reservation(arm))
            rows.append((label, *variant, *cells, *reach, end))
        if not arm.ladders:
            blank = [Cell(formatting.NONE)] * (len(heads) - 2)
            rows.append((Cell(arm.label), Cell(arm.status, tone="pending"), *blank))
    return Table(heads, tuple(rows), 1 + len(named))


def _reservation(arm: ArmSummary) -> str:
    """What to know of an arm beside its means: ``(1 of 4 seeds parked, step 600 of 3,000)``."""
    parked, seeds = (arm.run.parked, arm.run.seeds) if arm.run else ({}, ())
    parked_note = f"{len(parked)} of {len(seeds)} seeds parked" if parked else ""
    notes = ", ".join(filter(None, (parked_note, _nan_seeds(arm), arm.progress)))
    return f"({notes})" if notes else ""


def _nan_seeds(arm: ArmSummary) -> str:
    """``answers of 1 of 4 seeds are NaN or all -inf at 4×, 10×, and count as wrong``."""
    if arm.run is None or not arm.run.nan_shares:
        return ""
    seeds = {seed for seed, *_ in arm.run.nan_shares}
    multiples = sorted({multiple for *_, multiple in arm.run.nan_shares})
    lengths = ", ".join(map(formatting.times, multiples))
    many = f"{len(seeds)} of {len(arm.run.seeds)} seeds"
    return f"answers of {many} are NaN or all -inf at {lengths}, and count as wrong"


def _variant_column(arms: Sequence[ArmSummary]) -> tuple[str, ...]:
    return ("test",) if variants_of(arms) not in ([], [None]) else ()


def _summary(ladder: Ladder, multiple: float) -> Cell:
    measure = ladder.at(multiple)
    if measure is None:
        return _absent(ladder, multiple)
    s = measure.summary
    return Cell(
        formatting.percent(s.mean), formatting.interval(s), formatting.successes(s), _tone(s.mean)
    )


def _mean(ladder: Ladder, multiple: float, part: str) -> Cell:
    measure = ladder.at(multiple, part)
    if measure is None:
        return _absent(ladder, multiple)
    return Cell(formatting.percent(measure.summary.mean), tone=_tone(measure.summary.mean))


def _tone(accuracy: float) -> str:
    return "number" if accuracy >= LEVEL else "number low"


def _absent(ladder: Ladder, multiple: float) -> Cell:
    rung = ladder.rung(multiple)
    if rung is None:
        return Cell(formatting.NONE, tone="number", hint="not tested")
    return Cell("n/a", tone="number pending", hint=rung.reason or "")


def parts_table(arms: Sequence[ArmSummary], parts: Sequence[str]) -> Table:
    """Each part's exact accuracy by length: mean over seeds."""
    multiples, named = multiples_of(arms), _variant_column(arms)
    heads = ("arm", *named, "part", *(formatting.times(m) for m in multiples))
    rows = []
    for arm in arms:
        for ladder in arm.ladders:
            for part in parts:
                variant = [Cell(ladder.variant or "plain")] if named else []
                cells = [_mean(ladder, m, part) for m in multiples]
                rows.append((Cell(arm.label), *variant, Cell(part), *cells))
    return Table(heads, tuple(rows), 2 + len(named))


def seeds_table(arms: Sequence[ArmSummary]) -> Table:
    """Every seed's joint accuracy, the failures included, and how its phase 1 ended."""
    multiples, named = multiples_of(arms), _variant_column(arms)
    heads = ("arm", *named, "seed", "phase 1", *(formatting.times(m) for m in multiples))
    rows = []
    for arm in arms:
        for ladder in arm.ladders:
            seeds = {s for r in ladder.rungs for m in r.exact.values() for s in m.seeds}
            for seed in sorted(seeds | set(arm.run.seeds if arm.run else ())):
                variant = [Cell(ladder.variant or "plain")] if named else []
                cells = [_one(ladder, m, seed) for m in multiples]
                lead = (Cell(arm.label), *variant, _seed(arm.run, seed), _phase_of(arm, seed))
                rows.append((*lead, *cells))
    return Table(heads, tuple(rows), 2 + len(named))


def _seed(run: Run | None, seed: int) -> Cell:
    """A seed; one that was parked or has succeeded was measured as it was at that step."""
    both = {"parked": run.parked, "succeeded": run.succeeded} if run else {}
    said = [f"{what} at step {steps[seed]}" for what, steps in both.items() if seed in steps]
    return Cell(", ".join([str(seed), *said]))


def _phase_of(arm: ArmSummary, seed: int) -> Cell:
    if arm.phase is None:
        return Cell(formatting.NONE)
    if seed in arm.phase.failed:
        return Cell("not converged", tone="bad")
    if seed in arm.phase.parked:
        return Cell("parked", tone="bad")
    if seed in arm.phase.scheduled:
        return Cell(f"switched at step {arm.phase.scheduled[seed]:,} (scheduled)")
    return Cell("converged" if seed in arm.phase.converged else "no switch yet")


def _one(ladder: Ladder, multiple: float, seed: int) -> Cell:
    measure = ladder.at(multiple)
    if measure is None:
        return _absent(ladder, multiple)
    value = measure.seeds.get(seed)
    if value is None:
        return Cell(formatting.NONE, tone="number", hint="not tested")
    return Cell(formatting.percent(value), tone=_tone(value))


def bits_table(arms: Sequence[ArmSummary]) -> Table:
    """Each arm's bits per byte by part and length: mean over seeds, best and worst seed."""
    measured = [
        arm for arm in arms if any(rung.bits for ladder in arm.ladders for rung in ladder.rungs)
    ]
    multiples = multiples_of(measured)
    heads = ("arm", "part", "bytes", *map(formatting.times, multiples))
    rows = []
    for arm in measured:
        for part in bits_parts_of([arm]):
            ladder = arm.ladders[0]
            sizes = [rung.bytes[part] for rung in ladder.rungs if part in rung.bytes]
            count = Cell(f"{sizes[0]:,}" if sizes else formatting.NONE, tone="number")
            cells = (_bits(ladder, multiple, part) for multiple in multiples)
            rows.append((Cell(arm.label), Cell(part), count, *cells))
    return Table(heads, tuple(rows), 2)


def _bits(ladder: Ladder, multiple: float, part: str) -> Cell:
    measure = ladder.at(multiple, part, "bits")
    if measure is None:
        return _absent(ladder, multiple)
    spread = formatting.ends(measure.summary.values, "{:.3f}".format)
    return Cell(f"{measure.summary.mean:.3f}", spread, tone="number")


def reasons(arms: Sequence[ArmSummary]) -> list[str]:
    """Why some lengths are n/a, each reason once."""
    rungs = [(arm, r) for arm in arms for ladder in arm.ladders for r in ladder.rungs]
    return list(dict.fromkeys(f"{arm.label}: {r.reason}" for arm, r in rungs if r.reason))


def claims_table(verdicts: Sequence[Verdict]) -> Table:
    """Each claim with its verdict, the expected band, the measured value and the source."""
    rows = []
    for v in verdicts:
        tone = {"holds": "good", "does not hold": "bad"}.get(v.verdict, "pending")
        seeds = f"{v.seeds} seed{'s' * (v.seeds != 1)}" if v.seeds else ""
        note = ", ".join(filter(None, (v.detail, seeds)))
        verdict, measured = Cell(v.verdict, tone=f"verdict {tone}"), Cell(v.measured, note)
        claim = Cell(v.claim.text, STATED_AFTER if v.claim.stated == "after" else "")
        rows.append((verdict, claim, Cell(v.expected), measured, Cell(v.claim.source)))
    return Table(("verdict", "claim", "expected", "measured", "source"), tuple(rows), 0)


def claim_notes(verdicts: Sequence[Verdict]) -> list[str]:
    """What a mark in the table of claims means, if there is one."""
    return [STATED_AFTER_MEANS] if any(v.claim.stated == "after" for v in verdicts) else []
