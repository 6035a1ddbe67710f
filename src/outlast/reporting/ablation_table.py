"""How accurate the models are without each of their parts, in numbers."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.reporting.formatting import NONE, ends, percent, times
from outlast.reporting.summary import ArmSummary
from outlast.reporting.tables import Cell, Table
from outlast.runs.analyses import read_analysis

ABLATION = "ablation"
#: the values of the seeds, by ablation and part, then by multiple
Values = dict[tuple[str, str], dict[float, list[float]]]


def ablation_table(arms: Sequence[ArmSummary]) -> Table | None:
    """Sequences with every answer of a part right, %: mean over seeds, lowest and highest seed.

    A row for each arm, ablation and part. Single heads and auxiliary parts are left out. None
    without tables.
    """
    measured = [(arm, values) for arm in arms if (values := _values(arm))]
    multiples = sorted({x for _, values in measured for row in values.values() for x in row})
    if not multiples:
        return None
    rows = tuple(
        (Cell(arm.label), Cell(ablation), Cell(part), *(_cell(row.get(x, [])) for x in multiples))
        for arm, values in measured
        for (ablation, part), row in values.items()
    )
    return Table(("arm", "ablation", "part", *map(times, multiples)), rows, 3)


def _values(arm: ArmSummary) -> Values:
    table = read_analysis(arm.run.folder, ABLATION) if arm.run else None
    values: Values = {}
    if arm.run is None or table is None:
        return values
    for row in table.rows:
        part, exact = row.get("part"), row.get("exact")
        hidden = row.get("head") is not None or part in arm.run.record.auxiliary
        if row.get("step") is None and not hidden and isinstance(exact, int | float):
            name = " ".join(str(word) for word in (row["ablation"], row.get("layer")) if word)
            by_multiple = values.setdefault((name, str(part)), {})
            by_multiple.setdefault(float(row.get("multiple") or 0), []).append(float(exact))
    return values


def _cell(values: Sequence[float]) -> Cell:
    if not values:
        return Cell(NONE, tone="number")
    return Cell(percent(sum(values) / len(values)), ends(values, percent), tone="number")
