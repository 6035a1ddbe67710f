"""What the analyses measured, by length: probes, attention on the right token, ablations.

Of several layers and heads the one counts that is best at the shortest length, seed by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from outlast.evaluation.statistics import summarise_bits
from outlast.reporting.groups import Group
from outlast.reporting.hover import HoverFigure
from outlast.reporting.measure_by_length import Pick, Points, measure_figure
from outlast.reporting.panels import Form
from outlast.reporting.summary import ArmSummary, Measure
from outlast.runs.analyses import Row, read_analysis

Wanted = Callable[[Row], bool]


def analysis_figure(arms: Sequence[ArmSummary], form: Form) -> HoverFigure | None:
    """A panel for each measure. None if no arm was analysed."""
    picks = [
        Pick("state read by a probe", _best("state-probe", "accuracy", _whole_hidden)),
        Pick("keys read by a probe", _best("key-probe", "accuracy", _whole)),
        Pick("weight on the right token", _best("sharpness", "weight")),
        Pick("right without attention", _best("ablation", "exact", _without("attention off"))),
        Pick("right without recurrence", _best("ablation", "exact", _without("recurrence off"))),
    ]
    return measure_figure(arms, picks, form, "length of the test", decorate=_shares)


def _shares(ax: Axes, group: Group) -> None:
    """All measures are shares, so that panels can be compared."""
    ax.set_ylim(0, 1.02)


def _whole(row: Row) -> bool:
    return row.get("bin") is None


def _whole_hidden(row: Row) -> bool:
    return row.get("bin") is None and row.get("place") == "hidden"


def _without(ablation: str) -> Wanted:
    return lambda row: row.get("ablation") == ablation and row.get("part") == "joint"


def _best(
    name: str, value: str, wanted: Wanted = lambda row: True
) -> Callable[[ArmSummary], Points]:
    """The measure of each seed's best layer and head, at the end of training."""

    def points(arm: ArmSummary) -> Points:
        table = read_analysis(arm.run.folder, name) if arm.run else None
        # seed -> layer and head -> multiple -> value
        seeds: dict[int, dict[tuple[object, object], dict[float, float]]] = {}
        for row in table.rows if table else ():
            number = row.get(value)
            if row.get("step") is None and wanted(row) and isinstance(number, int | float):
                places = seeds.setdefault(int(row.get("seed") or 0), {})
                place = places.setdefault((row.get("layer"), row.get("head")), {})
                place[float(row.get("multiple") or 0)] = float(number)
        by_multiple: dict[float, dict[int, float]] = {}
        for seed, places in seeds.items():
            for multiple, number in max(places.values(), key=_at_the_shortest).items():
                by_multiple.setdefault(multiple, {})[seed] = number
        return [
            (multiple, Measure(values, summarise_bits(values.values())))
            for multiple, values in sorted(by_multiple.items())
        ]

    return points


def _at_the_shortest(values: dict[float, float]) -> float:
    return values[min(values)]
