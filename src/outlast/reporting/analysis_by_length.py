"""What the analyses measured, by length: probes, attention on the right token, ablations.

Of several layers and heads the one counts that is best at the shortest length, seed by seed. Of
`sharpness` it is the one with the most weight on the right token. Of `covariance` it is the one
whose score is largest for the right item, less that of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from outlast.evaluation.statistics import summarise_bits
from outlast.reporting.analysis_tables import table_of
from outlast.reporting.groups import Group
from outlast.reporting.hover import HoverFigure
from outlast.reporting.measure_by_length import DASHED, Pick, Points, lengths, measure_figure
from outlast.reporting.panels import Form, Key
from outlast.reporting.style import INK
from outlast.reporting.summary import ArmSummary, Measure
from outlast.runs.analyses import Row

Wanted = Callable[[Row], bool]
Share = Callable[[Row], float | None]
#: seed -> layer, head and kind of token -> multiple -> value
Numbers = dict[int, dict[tuple[object, ...], dict[float, float]]]
LAW_LEGEND = (
    " Dashed: the weight that softmax would give for the same margin if all other scores were "
    "equal."
)
ENTROPY_LEGEND = (
    " Entropy is of the head with the most weight on the right token, divided by log n, that of "
    "even weights on n keys."
)
KEPT_LEGEND = " Keys kept: the share to which this head gives a weight above 0."
COVARIANCE_LEGEND = (
    " Identity and place are of the head whose score is largest for the right item, less that of "
    "the others: the share of this margin in the subspace of identity, and the share of the "
    "variance of its scores in that of place."
)
#: a head drops keys if it keeps a smaller share; the table has a mean of kept keys and a median of
#: all, so that the share of a head that keeps all may differ from 1
DROPS = 0.9


def analysis_figure(arms: Sequence[ArmSummary], form: Form) -> HoverFigure | None:
    """A panel for each measure. None if no arm was analysed."""
    law = _best("sharpness", "weight", shown="law")
    picks = [
        Pick("state read by a probe", _best("state-probe", "accuracy", _whole_hidden)),
        Pick("keys read by a probe", _best("key-probe", "accuracy", _whole)),
        Pick("weight on the right token", _best("sharpness", "weight"), beside=law),
        Pick("entropy of the weights", _of_sharpest(_entropy)),
        Pick("keys kept", _kept_keys),
        Pick("margin that matches identity", _of_margin("identity", "identity_share")),
        Pick("scores that match the place", _of_margin("position", "variance_share")),
        Pick("right without attention", _best("ablation", "exact", _without("attention off"))),
        Pick("right without recurrence", _best("ablation", "exact", _without("recurrence off"))),
    ]
    keys = [_law_key()] if any(map(law, arms)) else []
    return measure_figure(arms, picks, form, lengths("length of the test"), keys, _shares)


def analysis_legend(arms: Sequence[ArmSummary]) -> str:
    """What is to be known of the panels that not every figure has."""
    law = any(map(_best("sharpness", "weight", shown="law"), arms))
    entropy, kept = any(map(_of_sharpest(_entropy), arms)), any(map(_kept_keys, arms))
    margin = any(map(_of_margin("identity", "identity_share"), arms))
    sharpness = LAW_LEGEND * law + ENTROPY_LEGEND * entropy + KEPT_LEGEND * kept
    return sharpness + COVARIANCE_LEGEND * margin


def _law_key() -> Key:
    return Line2D([], [], color=INK, linewidth=1.2, linestyle=DASHED), "law of softmax"


def _shares(ax: Axes, group: Group) -> None:
    """All measures are shares, so that panels can be compared; those of a score may be below 0."""
    low, high = ax.dataLim.intervaly
    low, high = max(low, -1.0), min(high, 2.0)
    ax.set_ylim(low - 0.03 if low < 0 else 0, max(1.02, high))


def _whole(row: Row) -> bool:
    return row.get("bin") is None


def _whole_hidden(row: Row) -> bool:
    return row.get("bin") is None and row.get("place") == "hidden"


def _without(ablation: str) -> Wanted:
    return lambda row: row.get("ablation") == ablation and row.get("part") == "joint"


def _best(
    name: str, value: str, wanted: Wanted = lambda row: True, shown: str = ""
) -> Callable[[ArmSummary], Points]:
    """The measure of each seed's best layer and head; or another column of theirs, `shown`."""

    def points(arm: ArmSummary) -> Points:
        rows = [row for row in _rows_at_end(arm, name) if wanted(row)]
        ranks = _numbers(rows, value)
        return _chosen(ranks, _numbers(rows, shown) if shown else ranks)

    return points


def _of_sharpest(share: Share) -> Callable[[ArmSummary], Points]:
    """A share of each seed's head with the most weight on the right token."""

    def points(arm: ArmSummary) -> Points:
        rows = _rows_at_end(arm, "sharpness")
        shares: list[Row] = [row | {"share": share(row)} for row in rows]
        return _chosen(_numbers(rows, "weight"), _numbers(shares, "share"))

    return points


def _kept_keys(arm: ArmSummary) -> Points:
    """The share of keys with a weight above 0; none if no head drops any."""
    shares = map(_kept, _rows_at_end(arm, "sharpness"))
    drops = any(share is not None and share < DROPS for share in shares)
    return _of_sharpest(_kept)(arm) if drops else []


def _kept(row: Row) -> float | None:
    return _share_of_keys(row, "kept", float)


def _entropy(row: Row) -> float | None:
    return _share_of_keys(row, "entropy", math.log)


def _share_of_keys(row: Row, column: str, most: Callable[[float], float]) -> float | None:
    """A column over the most that it can be with so many keys."""
    value, keys = row.get(column), row.get("keys")
    if isinstance(value, int | float) and isinstance(keys, int | float) and keys > 1:
        return value / most(keys)
    return None


def _of_margin(feature: str, value: str) -> Callable[[ArmSummary], Points]:
    """A column of a part of the scores, of the head with the largest margin of the right item."""

    def points(arm: ArmSummary) -> Points:
        rows = _rows_at_end(arm, "covariance")
        whole = [row for row in rows if row.get("feature") == "logit"]
        part = [row for row in rows if row.get("feature") == feature]
        return _chosen(_numbers(whole, "identity_margin"), _numbers(part, value))

    return points


def _rows_at_end(arm: ArmSummary, name: str) -> list[Row]:
    table = table_of(arm.run, name)
    return [row for row in table.rows if row.get("step") is None] if table else []


def _numbers(rows: Sequence[Row], column: str) -> Numbers:
    numbers: Numbers = {}
    for row in rows:
        number = row.get(column)
        if isinstance(number, int | float):
            places = numbers.setdefault(int(row.get("seed") or 0), {})
            place = places.setdefault((row.get("layer"), row.get("head"), row.get("token")), {})
            place[float(row.get("multiple") or 0)] = float(number)
    return numbers


def _chosen(ranks: Numbers, values: Numbers) -> Points:
    """The values of the place of each seed that ranks first at its shortest length."""
    by_multiple: dict[float, dict[int, float]] = {}
    for seed, places in ranks.items():
        best = max(places, key=lambda place: _at_the_shortest(places[place]))
        for multiple, number in values.get(seed, {}).get(best, {}).items():
            by_multiple.setdefault(multiple, {})[seed] = number
    return [
        (multiple, Measure(numbers, summarise_bits(numbers.values())))
        for multiple, numbers in sorted(by_multiple.items())
    ]


def _at_the_shortest(values: dict[float, float]) -> float:
    return values[min(values)]
