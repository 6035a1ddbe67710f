"""Keys while training: whether what enters attention still says under which key a value is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outlast.reporting.accuracy_by_length import SAME, accuracy_axis
from outlast.reporting.analysis_tables import table_of
from outlast.reporting.formatting import times
from outlast.reporting.hover import HoverFigure
from outlast.reporting.learning_curves import Pick, steps_figure
from outlast.reporting.load import Run, Series
from outlast.reporting.panels import Form
from outlast.reporting.summary import ArmSummary
from outlast.runs.analyses import Row


def keys_figure(arms: Sequence[ArmSummary], form: Form) -> HoverFigure | None:
    """The keys that a probe reads over the steps, a panel for each attention layer.

    None if no arm was looked at along the way.
    """
    rows = {arm.run.folder: _rows(arm.run) for arm in arms if arm.run}
    layers = max((len(_layers(of_run)) for of_run in rows.values()), default=0)
    multiple = min((_multiple(row) for of_run in rows.values() for row in of_run), default=1.0)

    def curves_of(number: int) -> Callable[[Run], Series]:
        return lambda run: _curves(rows[run.folder], number, multiple)

    picks = [
        Pick(f"attention layer {n + 1}, at {times(multiple)}", curves_of(n), accuracy_axis, SAME)
        for n in range(layers)
    ]
    return steps_figure(arms, picks, form)


def _rows(run: Run) -> list[Row]:
    """Of all tokens, if there are steps along the way; the end of training has a step, too."""
    table = table_of(run, "key-probe")
    rows = [row for row in table.rows if row.get("bin") is None] if table else []
    if table is None or all(row.get("step") is None for row in rows):
        return []
    last = run.record.settings.steps if table.trained is None else table.trained
    return [row | {"step": last} if row.get("step") is None else row for row in rows]


def _layers(rows: Sequence[Row]) -> list[object]:
    return list(dict.fromkeys(row.get("layer") for row in rows))


def _multiple(row: Row) -> float:
    return float(row.get("multiple") or 0)


def _curves(rows: Sequence[Row], number: int, multiple: float) -> Series:
    """Each seed's curve at one length, of one of the layers by its number."""
    curves: Series = {}
    for layer in _layers(rows)[number : number + 1]:
        for row in rows:
            accuracy, step = row.get("accuracy"), row.get("step")
            if row.get("layer") != layer or _multiple(row) != multiple:
                continue
            if isinstance(accuracy, int | float) and isinstance(step, int):
                curves.setdefault(int(row.get("seed") or 0), {})[step] = float(accuracy)
    return {seed: dict(sorted(curve.items())) for seed, curve in curves.items()}
