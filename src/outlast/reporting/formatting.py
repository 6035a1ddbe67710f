"""Numbers as a reader sees them: percentages, intervals, multiples, seeds."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence

from outlast.evaluation.statistics import Summary
from outlast.reporting.phase import Phase
from outlast.reporting.summary import Ladder

NONE = "–"


def percent(value: float, digits: int = 1) -> str:
    """0.994 as ``99.4``. Only exactly all reads ``100`` and only exactly none reads ``0``."""
    if value == 1:
        return "100"
    if value == 0:
        return "0"
    step = 10.0**-digits
    return f"{min(max(100 * value, step), 100 - step):.{digits}f}"


def points(value: float, digits: int = 1) -> str:
    """A difference of accuracies, in percentage points."""
    return f"{100 * value:.{digits}f}".replace("-", "−")


def interval(summary: Summary) -> str:
    """``[98.1, 100]``, or nothing for a single seed."""
    if summary.low is None or summary.high is None:
        return ""
    return f"[{percent(summary.low)}, {percent(summary.high)}]"


def ends(values: Sequence[float], words: Callable[[float], str]) -> str:
    """The lowest and the highest seed, ``[0.512, 0.704]``, or nothing for a single seed."""
    return f"[{words(min(values))}, {words(max(values))}]" if len(values) > 1 else ""


def successes(summary: Summary) -> str:
    """How many seeds reached the level: ``3/4``."""
    return f"{round(summary.success * summary.n)}/{summary.n}"


def times(multiple: float) -> str:
    """A multiple of the training length: ``3×``."""
    return f"{multiple:g}×"


def listed(items: Iterable[object]) -> str:
    """``0, 2, 5``."""
    return ", ".join(str(item) for item in items)


def numbered(seeds: Sequence[int]) -> str:
    """Seeds in few characters: ``0–3, 7``."""
    runs: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    shown = (f"{run[0]}–{run[-1]}" if len(run) > 2 else listed(run) for run in runs)
    return ", ".join(shown) or NONE


def effective(ladder: Ladder, level: float) -> str:
    """Up to where accuracy holds; ``≥`` where it still held at the longest length there is."""
    if ladder.chance >= level:
        return f"chance is {percent(ladder.chance)} %"
    rung = ladder.effective(level)
    if rung is None:
        return "none" if any(mean is not None for mean in ladder.means()) else NONE
    return f"≥ {times(rung.multiple)}" if rung is ladder.rungs[-1] else times(rung.multiple)


def fall(ladder: Ladder) -> tuple[str, str]:
    """The largest fall, and between which lengths."""
    cliff = ladder.cliff()
    if cliff is None:
        return ("none", "") if any(mean is not None for mean in ladder.means()) else (NONE, "")
    size, before, after = cliff
    return f"−{points(size)}", f"{times(before.multiple)} → {times(after.multiple)}"


def phase(outcome: Phase | None) -> tuple[str, str]:
    """How phase 1 ended: how many seeds converged and which did not, or a scheduled switch."""
    if outcome is None:
        return NONE, ""
    judged = len(outcome.converged) + len(outcome.failed)
    total = judged + len(outcome.scheduled) + len(outcome.waiting) + len(outcome.parked)
    steps = sorted(set(outcome.scheduled.values()))
    notes = [f"at step {listed(f'{step:,}' for step in steps)}"] if steps else []
    if outcome.failed:
        notes.append(f"not: {_seeds(outcome.failed)}")
    if outcome.waiting:
        notes.append(f"no switch yet: {_seeds(outcome.waiting)}")
    if outcome.parked:
        notes.append(f"parked: {_seeds(outcome.parked)}")
    if outcome.restarts:
        notes.append(f"{outcome.restarts} restart{'s' * (outcome.restarts != 1)}")
    if outcome.scheduled and not judged:
        return "scheduled switch", "; ".join(notes)
    return f"{len(outcome.converged)} of {total} converged", "; ".join(notes)


def _seeds(numbers: Sequence[int]) -> str:
    return f"seed{'s' * (len(numbers) != 1)} {listed(numbers)}"


def wrapped(text: str, letters: int, rows: int | None = None) -> str:
    """Text in rows of at most ``letters``. What is left after the last of ``rows`` is cut."""
    lines = textwrap.wrap(text, letters, max_lines=rows, placeholder="…", break_on_hyphens=False)
    return "\n".join(lines)


def in_rows(names: Sequence[str], letters: int, rows: int) -> list[str]:
    """Names in rows. A long name is cut, unless it then reads like another one."""
    cut = {name: wrapped(name, letters, rows) for name in names}
    texts = list(cut.values())
    return [cut[n] if texts.count(cut[n]) == 1 else wrapped(n, letters) for n in names]
