"""Token filter: how accurate an arm is with a share of the tokens that attention may see.

Tokens are ranked by the attention that they get where an answer is due, and the others are masked
in all attention layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from outlast.evaluation.statistics import summarise
from outlast.reporting.accuracy_by_length import accuracy_axis
from outlast.reporting.analysis_tables import table_of
from outlast.reporting.formatting import percent, times
from outlast.reporting.groups import Group
from outlast.reporting.hover import HoverFigure
from outlast.reporting.measure_by_length import Across, Pick, Points, measure_figure
from outlast.reporting.panels import Form
from outlast.reporting.summary import ArmSummary, Measure
from outlast.runs.analyses import Row

#: how much less accurate a model may be with some tokens than with all of them
LOSS = 0.01
MOST = 5  # arms that a caption names one by one


def tokens_figure(arms: Sequence[ArmSummary], form: Form) -> HoverFigure | None:
    """Sequences right by the share of tokens kept, a panel for each length. None without tables."""
    picks = [Pick(f"at {times(multiple)}", _points_at(multiple)) for multiple in _multiples(arms)]
    across = Across("share of the tokens that attention may see", _share_axis, _in_percent)
    return measure_figure(arms, picks, form, across, decorate=_accuracy)


def tokens_finding(arms: Sequence[ArmSummary]) -> str:
    """The smallest share of tokens with which each arm is nearly as accurate as with all."""
    multiple, clauses = min(_multiples(arms)), []
    for arm in arms:
        means = {share: m.summary.mean for share, m in _points_at(multiple)(arm)}
        if 1.0 in means:
            enough = min(share for share, mean in means.items() if mean >= means[1.0] - LOSS)
            right = f"with all tokens {percent(means[1.0])} % right"
            clauses.append(f"“{arm.label}” {_in_percent(enough)} ({right})")
    more = f"; and {len(clauses) - MOST} more" if len(clauses) > MOST else ""
    words = f"At {times(multiple)}, the smallest share of tokens that costs at most one point"
    return f"{words}: {'; '.join(clauses[:MOST])}{more}." if clauses else ""


def _rows(arm: ArmSummary) -> list[Row]:
    """The rows at the end of training, of all answers jointly."""
    table = table_of(arm.run, "token-filter")
    wanted = {"step": None, "ranking": "answers", "masked": "all", "part": "joint"}
    rows = table.rows if table else []
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def _multiples(arms: Sequence[ArmSummary]) -> list[float]:
    return sorted({float(row.get("multiple") or 0) for arm in arms for row in _rows(arm)})


def _points_at(multiple: float) -> Callable[[ArmSummary], Points]:
    def points(arm: ArmSummary) -> Points:
        shares: dict[float, dict[int, float]] = {}
        for row in _rows(arm):
            share, exact = row.get("share"), row.get("exact")
            if row.get("multiple") != multiple:
                continue
            if isinstance(share, int | float) and isinstance(exact, int | float):
                shares.setdefault(float(share), {})[int(row.get("seed") or 0)] = float(exact)
        return [
            (x, Measure(seeds, summarise(seeds.values()))) for x, seeds in sorted(shares.items())
        ]

    return points


def _share_axis(ax: Axes, places: list[float], tested: list[float], small: bool) -> None:
    """Logarithmic, as most shares are small."""
    ax.set_xscale("log")
    ax.set_xlim(min(places) / 1.15, max(places) * 1.15)
    ax.set_xticks(tested, [_in_percent(share) for share in tested])
    ax.set_xticks([], minor=True)


def _accuracy(ax: Axes, group: Group) -> None:
    accuracy_axis(ax)


def _in_percent(share: float) -> str:
    return f"{100 * share:g} %"
