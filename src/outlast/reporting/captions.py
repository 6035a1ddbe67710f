"""What each figure shows, in a sentence made from its numbers.

A caption never says more than the data: it counts seeds and arms, and names lengths that were
tested. It compares no intervals. An arm that was not tested, diverged or is unfinished is said to
be so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from outlast.evaluation.statistics import LEVEL, TOLERANCE
from outlast.reporting.formatting import percent, times
from outlast.reporting.load import Series
from outlast.reporting.phase import Phase
from outlast.reporting.summary import ArmSummary, Ladder, Rung, multiples_of, variants_of

MOST = 5  # arms that a caption names one by one
HELD = f"{percent(LEVEL, 0)} %"


def accuracy_finding(arms: Sequence[ArmSummary]) -> str:
    """How far the mean of each arm holds, and how many of its seeds hold as far."""
    variant, measured = _measured(arms, ["joint"])
    test = f" (test: {variant})" if variant else ""
    if len(arms) <= MOST:
        clauses = [f"{_named(arm)} {_reach(arm, variant)}" for arm in arms]
        return _sentence("; ".join(clauses) + test)
    multiple = _key_multiple(measured, variant)
    reaching = [arm for arm in measured if _reaches(arm, variant, multiple)]
    counted = sum(_mean(arm, variant, multiple) is not None for arm in measured)
    text = f"At {times(multiple)}, {len(reaching)} of {_plural(counted, 'arm')} "
    text += f"{_verb('reach', len(reaching))} {HELD} on the mean over seeds{test}"
    sound = [arm for arm in measured if not arm.diverged] or measured
    ranked = sorted(sound, key=lambda arm: _order(arm, variant))
    for arm in ranked[-1:] if len(ranked) == 1 else (ranked[-1], ranked[0]):
        text += f"; {_named(arm)} {_reach(arm, variant)}"
    return _sentence(text)


def seeds_finding(arms: Sequence[ArmSummary]) -> str:
    """How many seeds of each arm reach the level at one length."""
    variant, measured = _measured(arms, ["joint"])
    multiple = _key_multiple(measured, variant)
    counts = [(arm, *_reaching_seeds(arm, variant, multiple)) for arm in measured]
    counts = [(arm, reached, total) for arm, reached, total in counts if total]
    if len(counts) <= MOST:
        clauses = [f"{_named(arm)} on {reached} of {total}" for arm, reached, total in counts]
        return _sentence(f"Seeds that reach {HELD} at {times(multiple)}: {', '.join(clauses)}")
    every = sum(reached == total for _, reached, total in counts)
    none = sum(reached == 0 for _, reached, total in counts)
    some = len(counts) - every - none
    return _sentence(
        f"At {times(multiple)}, {every} of {len(counts)} arms {_verb('reach', every)} {HELD} on "
        f"every seed, "
        f"{some} on some seeds, {none} on none"
    )


def parts_finding(arms: Sequence[ArmSummary], parts: Sequence[str]) -> str:
    """Which parts reach the level at one length."""
    variant, measured = _measured(arms, parts)
    multiple = _key_multiple(measured, variant, parts)
    clauses = []
    for part in parts:
        means = [_mean(arm, variant, multiple, part) for arm in measured]
        known = [mean for mean in means if mean is not None]
        if not known:
            continue
        if len(measured) == 1:
            clauses.append(f"{part} {percent(known[0])} %")
        else:
            reaching = sum(mean >= LEVEL - TOLERANCE for mean in known)
            clauses.append(f"{part} by {reaching} of {_plural(len(known), 'arm')}")
    if len(measured) == 1:
        return _sentence(f"At {times(multiple)}, {_named(measured[0])}: {', '.join(clauses)}")
    return _sentence(f"At {times(multiple)}, {HELD} is reached on {', '.join(clauses)}")


def loss_finding(arms: Sequence[ArmSummary]) -> str:
    """The last loss of each part, and how phase 1 ended."""
    runs = [(arm, arm.run) for arm in arms if arm.run]
    clauses = []
    for part in dict.fromkeys(part for _, run in runs for part in run.losses):
        ends = [(_last_mean(run.losses.get(part, {})), arm) for arm, run in runs]
        known = sorted(((end, arm) for end, arm in ends if end is not None), key=lambda e: e[0])
        if not known:
            continue
        (low, lowest), (high, highest) = known[0], known[-1]
        if f"{low:.2g}" == f"{high:.2g}":
            clauses.append(f"{part} {low:.2g}")
        else:
            span = f"from {low:.2g} ({_named(lowest)}) to {high:.2g} ({_named(highest)})"
            clauses.append(f"{part} {span}")
    ended = "The last mean loss: " + "; ".join(clauses) if clauses else ""
    phases = [arm.phase for arm in arms if arm.phase]
    seeds, parked = sum(len(r.seeds) for _, r in runs), sum(len(r.parked) for _, r in runs)
    lost = f"{parked} of {_plural(seeds, 'seed')} {'was' if parked == 1 else 'were'} parked"
    sentences = (ended, *_phase_ends(phases), lost if parked else "")
    return " ".join(_sentence(sentence) for sentence in sentences if sentence)


def _phase_ends(phases: Sequence[Phase]) -> list[str]:
    """On how many seeds phase 1 converged, and how many switched at a step fixed before."""
    judged = [p for p in phases if p.converged or p.failed]
    converged = sum(len(p.converged) for p in judged)
    others = sum(len(p.failed) + len(p.waiting) + len(p.parked) for p in judged)
    scheduled = sum(len(p.scheduled) for p in phases)
    sentences = []
    if judged:
        total = _plural(converged + others, "seed")
        sentences.append(f"Phase 1 converged on {converged} of {total}")
    if scheduled:
        sentences.append(f"Phase 1 switched as scheduled on {_plural(scheduled, 'seed')}")
    return sentences


def probe_finding(arms: Sequence[ArmSummary]) -> str:
    """The last probe of each arm at the longest probed length."""
    runs = [(arm, arm.run) for arm in arms if arm.run and arm.run.probes]
    multiple = max(m for _, run in runs for m in run.probes)
    ends = [(arm, _last_mean(run.probes.get(multiple, {}))) for arm, run in runs]
    known = [(arm, end) for arm, end in ends if end is not None]
    if not known:
        return ""
    if len(known) <= MOST:
        clauses = [f"{_named(arm)} {percent(end)} %" for arm, end in known]
        return _sentence(f"The last probe at {times(multiple)}: {', '.join(clauses)}")
    reaching = sum(end >= LEVEL - TOLERANCE for _, end in known)
    text = f"In the last probe at {times(multiple)}, {reaching} of {len(known)} arms"
    return _sentence(f"{text} {_verb('reach', reaching)} {HELD} on the mean over seeds")


def nan_findings(arms: Sequence[ArmSummary]) -> list[str]:
    """Each seed that gave NaN outputs: which share of the answers, at which lengths."""
    notes = []
    for arm in arms:
        shares = arm.run.nan_shares if arm.run else {}
        for seed in dict.fromkeys(seed for seed, *_ in shares):
            places = [
                f"{percent(share)} % at {times(multiple)}{f' ({variant})' if variant else ''}"
                for (of_seed, variant, multiple), share in shares.items()
                if of_seed == seed
            ]
            notes.append(f"NaN answers of {_named(arm)}, seed {seed}: {', '.join(places)}")
    return notes


def _reach(arm: ArmSummary, variant: str | None) -> str:
    """``holds 90 % to length 30 (3×) (4 of 4 seeds)``."""
    ladder, last = arm.ladder(variant), _last_rung(arm, variant)
    if arm.diverged:
        return "diverged on every seed"
    if ladder is None or last is None:
        return "was not tested"
    if ladder.chance >= LEVEL:
        share, guessed = percent(last.exact["joint"].summary.mean), percent(ladder.chance)
        return f"has {share} % at {_place(last)} (chance at {times(1)}: {guessed} %)"
    notes = [_seeds_as_far(arm, ladder), arm.progress]
    notes = [note for note in notes if note]
    about = f" ({', '.join(notes)})" if notes else ""
    held = ladder.effective(LEVEL)
    if held is None:
        first = next(rung for rung in ladder.rungs if "joint" in rung.exact)
        share = percent(first.exact["joint"].summary.mean)
        return f"is below {HELD} at {_place(first)}, the shortest tested: {share} %{about}"
    end = ", the longest tested"
    if held is not last:
        tested = [rung for rung in ladder.rungs if "joint" in rung.exact]
        end = f" and falls below it at {_place(tested[tested.index(held) + 1])}"
    return f"holds {HELD} to {_place(held)}{end}{about}"


def _seeds_as_far(arm: ArmSummary, ladder: Ladder) -> str:
    """How many seeds hold the level as far as the mean, or at the shortest length."""
    held = ladder.effective(LEVEL)
    rung = held or next(rung for rung in ladder.rungs if "joint" in rung.exact)
    seeds = sorted(rung.exact["joint"].seeds)
    if len(seeds) == 1:
        return "1 seed"
    reaches = [ladder.effective(LEVEL, seed) for seed in seeds]
    as_far = sum(reach is not None and reach.length >= rung.length for reach in reaches)
    parked = arm.count_parked(rung.exact["joint"])
    return f"{as_far} of {len(seeds)} seeds hold it" + (f", {parked} parked" if parked else "")


def _measured(
    arms: Sequence[ArmSummary], parts: Sequence[str]
) -> tuple[str | None, list[ArmSummary]]:
    """The first version of the test that has a measure of the parts, and the arms that have one."""
    for variant in variants_of(arms):
        multiples = multiples_of(arms)
        measured = [a for a in arms if any(_any_mean(a, variant, m, parts) for m in multiples)]
        if measured:
            return variant, measured
    raise ValueError("no arm has a measure: there is no figure to describe")


def _any_mean(arm: ArmSummary, variant: str | None, multiple: float, parts: Sequence[str]) -> bool:
    return any(_mean(arm, variant, multiple, part) is not None for part in parts)


def _place(rung: Rung) -> str:
    return f"length {rung.length:g} ({times(rung.multiple)})"


def _last_rung(arm: ArmSummary, variant: str | None) -> Rung | None:
    """The longest length at which an arm was tested."""
    ladder = arm.ladder(variant)
    tested = [rung for rung in ladder.rungs if "joint" in rung.exact] if ladder else []
    return tested[-1] if tested else None


def _order(arm: ArmSummary, variant: str | None) -> tuple[float, float]:
    """How far an arm holds, then its accuracy at the longest length."""
    ladder, last = arm.ladder(variant), _last_rung(arm, variant)
    held = ladder.effective(LEVEL) if ladder else None
    accuracy = last.exact["joint"].summary.mean if last else 0.0
    return held.multiple if held else 0.0, accuracy


def _key_multiple(
    arms: Sequence[ArmSummary], variant: str | None, parts: Sequence[str] = ("joint",)
) -> float:
    """The length nearest to 3× among those at which every arm was tested, or else any."""
    tested = [m for m in multiples_of(arms) if any(_any_mean(a, variant, m, parts) for a in arms)]
    shared = [m for m in tested if all(_any_mean(a, variant, m, parts) for a in arms)]
    return min(shared or tested, key=lambda multiple: (abs(multiple - 3), multiple))


def _mean(
    arm: ArmSummary, variant: str | None, multiple: float, part: str = "joint"
) -> float | None:
    ladder = arm.ladder(variant)
    measure = ladder.at(multiple, part) if ladder else None
    return measure.summary.mean if measure else None


def _reaches(arm: ArmSummary, variant: str | None, multiple: float) -> bool:
    mean = _mean(arm, variant, multiple)
    return mean is not None and mean >= LEVEL - TOLERANCE


def _reaching_seeds(arm: ArmSummary, variant: str | None, multiple: float) -> tuple[int, int]:
    """How many seeds reach the level, and how many were tested."""
    ladder = arm.ladder(variant)
    measure = ladder.at(multiple) if ladder else None
    if measure is None:
        return 0, 0
    return round(measure.summary.success * measure.summary.n), measure.summary.n


def _last_mean(series: Series) -> float | None:
    """The mean of the seeds' last finite values."""
    ends = []
    for curve in series.values():
        finite = [step for step, value in curve.items() if math.isfinite(value)]
        if finite:
            ends.append(curve[max(finite)])
    return math.fsum(ends) / len(ends) if ends else None


def _named(arm: ArmSummary) -> str:
    return f"“{arm.label}”"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _verb(verb: str, count: int) -> str:
    return verb if count != 1 else f"{verb}es"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
