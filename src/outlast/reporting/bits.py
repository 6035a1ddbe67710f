"""Bits per byte of text in a report: sentences made from the numbers."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.reporting.formatting import times
from outlast.reporting.summary import ArmSummary, Measure, multiples_of
from outlast.runs.records import ALL

MOST = 6  # arms that a sentence names one by one


def bits_headline(arms: Sequence[ArmSummary]) -> str:
    """The best and the worst arm at the longest context; nothing if there are no bits."""
    ranked = _ranked(arms)
    if not ranked:
        return ""
    multiple = _longest(arms)
    shown = [ranked[0], *ranked[1:][-1:]]
    words = [
        f"“{arm.label}” {'needs ' * (i == 0)}{_words(arm, multiple)}" for i, arm in enumerate(shown)
    ]
    return f"With {times(multiple)} the context of training, {', '.join(words)}"


def bits_finding(arms: Sequence[ArmSummary]) -> str:
    """Bits per byte at the training length and at the longest one."""
    ranked, multiple = _ranked(arms), _longest(arms)
    named = ranked if len(ranked) <= MOST else [*ranked[:2], *ranked[-2:]]
    said = "; ".join(f"“{arm.label}” {_words(arm, multiple)}" for arm in named)
    baselines = {b for arm in arms if (b := arm.zlib) is not None}
    zlib = f" zlib takes {baselines.pop():.2f}." if len(baselines) == 1 else ""
    return f"At {times(multiple)}: {said}.{zlib}"


def parts_bits_finding(arms: Sequence[ArmSummary], parts: Sequence[str]) -> str:
    """The best arm for each part at the longest context."""
    multiple, clauses = _longest(arms), []
    for part in parts:
        ranked = _ranked(arms, part)
        if ranked:
            clauses.append(f"{part} “{ranked[0].label}” ({_words(ranked[0], multiple, part)})")
    return f"Fewest bits at {times(multiple)}: {'; '.join(clauses)}."


def _words(arm: ArmSummary, multiple: float, part: str = ALL) -> str:
    """``2.104 bits per byte (1×: 2.210)``."""
    measure, first = _measure(arm, multiple, part), _measure(arm, 1, part)
    if measure is None:
        return "is not known"
    before = f" (1×: {first.summary.mean:.3f})" if first and multiple != 1 else ""
    state = ", diverged" if arm.diverged else f", {arm.progress}" if arm.progress else ""
    return f"{measure.summary.mean:.3f} bits per byte{before}{state}"


def _measure(arm: ArmSummary, multiple: float, part: str = ALL) -> Measure | None:
    return arm.ladders[0].at(multiple, part, "bits") if arm.ladders else None


def _longest(arms: Sequence[ArmSummary]) -> float:
    """The longest context at which some arm was measured."""
    tested = [m for m in multiples_of(arms) if any(_measure(arm, m) for arm in arms)]
    return tested[-1] if tested else 1.0


def _ranked(arms: Sequence[ArmSummary], part: str = ALL) -> list[ArmSummary]:
    """The arms measured at the longest context, fewest bits first; those that diverged are last."""
    multiple = _longest(arms)
    pairs = [(arm, _measure(arm, multiple, part)) for arm in arms]
    known = [(arm.diverged, measure.summary.mean, arm) for arm, measure in pairs if measure]
    return [arm for *_, arm in sorted(known, key=lambda item: item[:2])]
