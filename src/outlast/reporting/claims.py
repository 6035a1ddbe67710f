"""Each claim of a study against what was measured, and the whole study in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from outlast.evaluation.statistics import TOLERANCE, Summary
from outlast.reporting.bits import bits_headline
from outlast.reporting.formatting import interval, percent, points, times
from outlast.reporting.summary import ArmSummary, Measure, multiples_of, variants_of
from outlast.runs.study import Claim

HOLDS, FAILS, UNMEASURED = "holds", "does not hold", "not measured"
#: what a claim rests on does not hold, or an arm that would make it hold has diverged
OPEN = "cannot say"


@dataclass(frozen=True)
class Verdict:
    """A claim, what was measured for it, and whether that lies in its band."""

    claim: Claim
    verdict: str
    value: float | None
    seeds: int
    detail: str

    @property
    def measured(self) -> str:
        """The value with its unit; with more digits where rounding would hide the verdict."""
        if self.value is None:
            return "–"
        digits = 1
        while digits < 3 and self.verdict == FAILS and self._looks_like_a_bound(digits):
            digits += 1
        return _number(self.claim, self.value, digits) + _unit(self.claim)

    def _looks_like_a_bound(self, digits: int) -> bool:
        value, bounds = self.value or 0.0, (self.claim.low, self.claim.high)
        shown = [_number(self.claim, bound, digits) for bound in bounds if bound is not None]
        return _number(self.claim, value, digits) in shown

    @property
    def expected(self) -> str:
        """The band in words: ``≥ 90 %``."""
        claim = self.claim
        low = None if claim.low is None else _bound(claim, claim.low)
        high = None if claim.high is None else _bound(claim, claim.high)
        if low and high:
            return f"{low} to {high}{_unit(claim)}"
        if low == "100" and claim.measure == "exact" and claim.statistic != "difference":
            return f"100{_unit(claim)}"
        if low or high:
            return f"≥ {low}{_unit(claim)}" if low else f"≤ {high}{_unit(claim)}"
        return "any"

    def as_json(self) -> dict[str, Any]:
        measured = ("text", "arm", "versus", "variant", "part", "multiple", "statistic")
        names = (*measured, "low", "high", "condition", "source", "stated")
        about = {name: getattr(self.claim, name) for name in names}
        return {**about, "value": self.value, "seeds": self.seeds, "verdict": self.verdict}


def judge(claims: Sequence[Claim], arms: Sequence[ArmSummary]) -> list[Verdict]:
    """The verdict on each claim."""
    verdicts = [_judge(claim, {arm.name: arm for arm in arms}) for claim in claims]
    held = {v.claim.text: v.verdict == HOLDS for v in verdicts}
    return [
        replace(v, verdict=OPEN)
        if v.value is not None and v.claim.condition and not held.get(v.claim.condition, True)
        else v
        for v in verdicts
    ]


def _judge(claim: Claim, arms: dict[str, ArmSummary]) -> Verdict:
    measure = _measure(arms.get(claim.arm), claim)
    if measure is None:
        return Verdict(claim, UNMEASURED, None, 0, "")
    summary, detail, compared = measure.summary, "", [(arms[claim.arm], measure)]
    if claim.statistic == "difference":
        other = _measure(arms.get(claim.versus or ""), claim)
        if other is None:
            return Verdict(claim, UNMEASURED, None, 0, "")
        compared.append((arms[claim.versus or ""], other))
        value = summary.mean - other.summary.mean
        means = (summary.mean, other.summary.mean)
        detail = " − ".join(_bits(m) if claim.measure == "bits" else percent(m) for m in means)
    else:
        value = _statistics(summary)[claim.statistic]
        ends = interval(summary) if claim.statistic == "mean" else ""
        detail = f"95 % interval {ends}" if ends else ""
    verdict = HOLDS if _inside(value, claim.low, claim.high) else FAILS
    gone = [arm.label for arm, _ in compared if arm.diverged]
    notes = [detail, *(note for pair in compared for note in _reservations(*pair))]
    if gone:  # it was never trained, which shows no more than that
        notes.append(f"every seed of {' and of '.join(gone)} diverged")
        verdict = OPEN if verdict == HOLDS else verdict
    return Verdict(claim, verdict, value, summary.n, ", ".join(filter(None, notes)))


def _reservations(arm: ArmSummary, measure: Measure) -> list[str]:
    """What to know of an arm that was compared: seeds that were parked, steps that are left."""
    if arm.diverged:
        return []
    parked = f"{arm.count_parked(measure)} of {len(measure.seeds)} seeds of {arm.label} parked"
    at = f"{arm.label} at {arm.progress}"
    return [*([parked] if arm.count_parked(measure) else []), *([at] if arm.progress else [])]


def _statistics(summary: Summary) -> dict[str, float]:
    return {
        "mean": summary.mean,
        "iqm": summary.iqm,
        "min": min(summary.values),
        "max": max(summary.values),
        "success": summary.success,
    }


def _measure(arm: ArmSummary | None, claim: Claim) -> Measure | None:
    ladder = arm.ladder(claim.variant) if arm else None
    return ladder.at(claim.multiple, claim.part, claim.measure) if ladder else None


def _inside(value: float, low: float | None, high: float | None) -> bool:
    above = low is None or value >= low - TOLERANCE
    return above and (high is None or value <= high + TOLERANCE)


def _number(claim: Claim, value: float, digits: int = 1) -> str:
    if claim.measure == "bits":
        return _bits(value, digits + 1)
    if claim.statistic == "difference":
        return points(value, digits).removesuffix(".0")
    return percent(value, digits).removesuffix(".0")


def _bits(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


def _unit(claim: Claim) -> str:
    if claim.measure == "bits":
        return " bits per byte"
    return {"difference": " points", "success": " % of seeds"}.get(claim.statistic, " %")


def _bound(claim: Claim, value: float) -> str:
    """A bound as it was written down, never rounded."""
    value = value if claim.measure == "bits" else 100 * value
    return f"{value:.6g}".replace("-", "−")


def headline(arms: Sequence[ArmSummary], verdicts: Sequence[Verdict]) -> str:
    """The study in one sentence, with its key numbers."""
    key = _key_arms(arms, verdicts)
    if not key and (words := bits_headline(arms)):
        return f"{words}; {tally(verdicts)}." if verdicts else f"{words}."
    if not key:
        return "Nothing has been evaluated yet."
    multiple, variant, key_arms = key
    test = f" of the {variant} test" if variant else ""
    first, *others = [_said(arm, variant, multiple) for arm in key_arms]
    text = f"At {times(multiple)} the training length, {first[0]} gets {first[1]} of the sequences"
    text += f"{test} entirely right ({first[2]})"
    text += "".join(f", {name} {share} ({about})" for name, share, about in others)
    return f"{text}; {tally(verdicts)}." if verdicts else f"{text}."


def tally(verdicts: Sequence[Verdict]) -> str:
    """``3 of 4 claims hold (1 of them stated after the numbers), 1 was not measured``."""
    names = [v.verdict for v in verdicts]
    if UNMEASURED in names and names.count(UNMEASURED) == len(names):
        return "none of the claims has been measured"
    late = sum(v.verdict == HOLDS and v.claim.stated == "after" for v in verdicts)
    if len(names) == 1:
        return f"the one claim {names[0]}" + (" (stated after the numbers)" if late else "")
    text = f"{names.count(HOLDS)} of {len(names)} claims hold"
    text += f" ({late} of them stated after the numbers)" if late else ""
    if OPEN in names:
        text += f", {names.count(OPEN)} cannot be judged"
    unmeasured = names.count(UNMEASURED)
    if unmeasured:
        text += f", {unmeasured} {'was' if unmeasured == 1 else 'were'} not measured"
    return text


def _said(arm: ArmSummary, variant: str | None, multiple: float) -> tuple[str, str, str]:
    """An arm's name, its share of right sequences, and how sure that is."""
    name, ladder = f"“{arm.label}”", arm.ladder(variant)
    measure = ladder.at(multiple) if ladder else None
    if measure is None:
        return name, "an unknown share", "not measured"
    share = f"{percent(measure.summary.mean)} %"
    if arm.diverged:
        return name, share, "diverged"
    at = f"at {arm.progress}" if arm.progress else ""
    parked = f"{arm.count_parked(measure)} of them parked" if arm.count_parked(measure) else ""
    return name, share, ", ".join(filter(None, (_spread(measure.summary), parked, at)))


def _spread(s: Summary) -> str:
    """How far the seeds are apart: ``84.0 to 96.0 over 2 seeds``."""
    worst, best = min(s.values), max(s.values)
    if s.n == 1:
        return "1 seed"
    if worst == best:
        return f"each of {s.n} seeds"
    return f"{percent(worst)} to {percent(best)} over {s.n} seeds"


def _key_arms(
    arms: Sequence[ArmSummary], verdicts: Sequence[Verdict]
) -> tuple[float, str | None, list[ArmSummary]] | None:
    """Which length, test version and arms the sentence speaks of.

    The first measured comparison among the claims; else the best and the worst arm at the first
    measured claim's length, or at the tested length nearest 3 x.
    """
    by_name = {arm.name: arm for arm in arms}
    measured = [v.claim for v in verdicts if v.value is not None and v.claim.part == "joint"]
    for claim in measured:
        if claim.versus in by_name and claim.statistic == "difference":
            return claim.multiple, claim.variant, [by_name[claim.arm], by_name[claim.versus]]
    for variant in variants_of(arms):
        tested = [m for m in multiples_of(arms) if _ranked(arms, variant, m)]
        wanted = [claim.multiple for claim in measured if claim.variant == variant]
        if tested:
            multiple = wanted[0] if wanted else min(tested, key=lambda m: (abs(m - 3), m))
            ranked = _ranked(arms, variant, multiple)
            return multiple, variant, [ranked[0], *ranked[1:][-1:]]
    return None


def _ranked(arms: Sequence[ArmSummary], variant: str | None, multiple: float) -> list[ArmSummary]:
    """The arms measured there, best first; those that diverged are last."""
    measured = []
    for arm in arms:
        ladder = arm.ladder(variant)
        measure = ladder.at(multiple) if ladder else None
        if measure:
            measured.append((measure.summary.mean, arm))
    return [arm for _, arm in sorted(measured, key=lambda pair: (pair[1].diverged, -pair[0]))]
