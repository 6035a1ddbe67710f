"""How accurate the models are without each of their parts, in numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outlast.reporting.analysis_tables import table_of
from outlast.reporting.formatting import NONE, ends, percent, times
from outlast.reporting.summary import ArmSummary
from outlast.reporting.tables import Cell, Table
from outlast.runs.analyses import Row

ABLATION = "ablation"
#: the word for all heads of a layer
ALL = "all"
#: the values of the seeds, by what names a row, then by multiple
Values = dict[tuple[str, ...], dict[float, list[float]]]


def ablation_table(arms: Sequence[ArmSummary]) -> Table | None:
    """Sequences with every answer of a part right, %: mean over seeds, lowest and highest seed.

    A row for each arm, ablation and part. Single layers and heads are in `layers_table`, and
    auxiliary parts are left out. None without tables.
    """
    values = [_values(arm, _pathway_names) for arm in arms]
    return _table(arms, ("ablation", "part"), values)


def layers_table(arms: Sequence[ArmSummary]) -> Table | None:
    """The same without one layer or head: a row for each arm, layer, head and part.

    A layer stands before its heads.
    """
    values = [_by_layer(_values(arm, _layer_names)) for arm in arms]
    return _table(arms, ("layer", "head", "part"), values)


def _pathway_names(row: Row) -> tuple[str, ...] | None:
    return None if row.get("layer") else (str(row["ablation"]), str(row.get("part")))


def _layer_names(row: Row) -> tuple[str, ...] | None:
    layer, head = row.get("layer"), row.get("head")
    return (str(layer), ALL if head is None else str(head), str(row.get("part"))) if layer else None


def _by_layer(values: Values) -> Values:
    """The rows of a layer together, in the order of the first of them."""
    layers = [layer for layer, *_ in values]
    return dict(sorted(values.items(), key=lambda item: layers.index(item[0][0])))


def _table(
    arms: Sequence[ArmSummary], names: tuple[str, ...], by_arm: Sequence[Values]
) -> Table | None:
    multiples = sorted({x for values in by_arm for row in values.values() for x in row})
    if not multiples:
        return None
    rows = tuple(
        (Cell(arm.label), *map(Cell, words), *(_cell(row.get(x, [])) for x in multiples))
        for arm, values in zip(arms, by_arm, strict=True)
        for words, row in values.items()
    )
    return Table(("arm", *names, *map(times, multiples)), rows, 1 + len(names))


def _values(arm: ArmSummary, names_of: Callable[[Row], tuple[str, ...] | None]) -> Values:
    """The values of the rows that have names, at the end of training."""
    table = table_of(arm.run, ABLATION)
    values: Values = {}
    if arm.run is None or table is None:
        return values
    for row in table.rows:
        names, exact = names_of(row), row.get("exact")
        hidden = row.get("step") is not None or row.get("part") in arm.run.record.auxiliary
        if names is not None and not hidden and isinstance(exact, int | float):
            by_multiple = values.setdefault(names, {})
            by_multiple.setdefault(float(row.get("multiple") or 0), []).append(float(exact))
    return values


def _cell(values: Sequence[float]) -> Cell:
    if not values:
        return Cell(NONE, tone="number")
    return Cell(percent(sum(values) / len(values)), ends(values, percent), tone="number")
