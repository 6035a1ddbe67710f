"""The runs of a sweep: every combination of the values of its axes, or some drawn at random.

::

    lr=0.001,0.002   task=parity,copy   model=lstm @ 16,mlp @ 16   seeds=0-3,4-7   method=none,dat
    lr=log(1e-4, 1e-2)   weight_decay=uniform(0, 0.1)      ranges, to draw from (--random)

An axis is a task, a model, a method, seeds or any setting.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from random import Random
from typing import Any

from outlast.arguments import check_whole
from outlast.errors import SpecError, bad_value, conflict
from outlast.runs.spec import RunSpec, Settings
from outlast.specs import Spec, parse_value
from outlast.workflow.create import canonical, describe
from outlast.workflow.grid import (
    METHOD,
    MODEL,
    NO_SETTING,
    TASK,
    folder_name,
    read_axes,
    with_values,
)

#: the most runs of a sweep, unless it is told otherwise
MOST_RUNS = 10_000
#: what an axis may be, and in words
NAMES = (*NO_SETTING, *(f.name for f in fields(Settings)))
ACCEPTED = "task, model, method, seeds or a setting"
#: the settings that are whole numbers
WHOLE = {f.name for f in fields(Settings) if f.type in ("int", "int | None")}
#: how a range begins
RANGE = r"(log|uniform)\s*\("
#: the most characters of a folder's name, and the digits of a hash that tells long names apart
LONGEST_NAME, DIGITS = 120, 8
#: how often as many draws are made as there are runs to draw, before it is said that they repeat
PATIENCE = 100


@dataclass(frozen=True)
class Range:
    """Numbers to draw from, evenly or evenly in the logarithm; three digits are kept of a draw."""

    low: float
    high: float
    logarithmic: bool
    whole: bool

    def draw(self, share: float) -> str:
        """The number at a share of the way from low to high."""
        if self.logarithmic:
            number = self.low * (self.high / self.low) ** share
        else:
            number = self.low + (self.high - self.low) * share
        return str(round(number)) if self.whole else f"{number:.3g}"


Axis = Sequence[str] | Range


class Pairs(tuple[tuple[str, str], ...]):
    """The values of a run, by axis."""

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self)


def find_candidates(
    run: RunSpec,
    axes: Sequence[str] = (),
    random: int | None = None,
    search_seed: int = 0,
    most_runs: int = MOST_RUNS,
) -> dict[str, RunSpec]:
    """The runs of a sweep by the names of their folders.

    Args:
        run: What all of them share. An empty task or model must be an axis.
        axes: ``name=value,value``; a range is ``lr=log(1e-4, 1e-2)`` or ``lr=uniform(0, 0.1)``.
        random: Draw so many different combinations; by default there is a run for each.
        search_seed: Decides what is drawn.
        most_runs: More runs than this are refused.
    """
    values_by_name = {
        name: _axis(name, values) for name, values in read_axes(axes, NAMES, ACCEPTED).items()
    }
    _check_task_and_model(run, values_by_name)
    _check_count(axes, values_by_name, random, most_runs)
    chosen = (
        _crossed(values_by_name) if random is None else _drawn(values_by_name, random, search_seed)
    )
    variants = {Pairs(values.items()): _variant(run, values) for values in chosen}
    _check_different(variants)
    check_fit(variants)
    return {name: variants[pairs] for pairs, name in _folder_names(variants).items()}


def _axis(name: str, values: list[str]) -> Axis:
    """The values of an axis, or the range that its only value is."""
    is_range = [name not in NO_SETTING and re.match(RANGE, value) for value in values]
    if not any(is_range):
        return values
    if len(values) > 1:
        raise bad_value("grid", f"{name}={','.join(values)}", "single values, or a range alone")
    value = parse_value(values[0])
    if not isinstance(value, Spec):
        return values
    written, ends = f"{name}={values[0]}", value.args
    numbers = [float(n) for n in ends if isinstance(n, int | float) and not isinstance(n, bool)]
    if value.kwargs or len(ends) != 2 or len(numbers) != 2 or not numbers[0] < numbers[1]:
        raise bad_value("grid", written, f"{name}={value.name}(low, high) with low < high")
    if value.name == "log" and numbers[0] <= 0:
        raise bad_value("grid", written, "a range above 0 for log")
    return Range(numbers[0], numbers[1], value.name == "log", name in WHOLE)


def _check_task_and_model(run: RunSpec, axes: Mapping[str, Axis]) -> None:
    for name, value in ((TASK, run.task), (MODEL, run.model), (METHOD, " + ".join(run.methods))):
        if name in axes and value:
            raise conflict(name, f"--{name} {value}", f"--grid {name}=...")
    for name, value in ((TASK, run.task), (MODEL, run.model)):
        if name not in axes and not value:
            raise bad_value(name, "none", f"--{name} ..., or --grid {name}=... for several")


def _check_count(
    written: Sequence[str], axes: Mapping[str, Axis], random: int | None, most: int
) -> None:
    check_whole("most_runs", most, 1)
    if random is not None:
        check_whole("random", random, 1)
    sizes = [None if isinstance(axis, Range) else len(axis) for axis in axes.values()]
    total = math.inf if None in sizes else math.prod(size for size in sizes if size)
    if random is None and total == math.inf:
        ranges = [name for name, axis in axes.items() if isinstance(axis, Range)]
        accepted = "single values, or --random N to draw from a range"
        raise bad_value("grid", f"{' '.join(ranges)} as a range", accepted)
    if random is not None and random > total:
        raise bad_value("random", random, f"at most {total:,}, all runs of the grid")
    count = total if random is None else random
    if count > most:
        field, value = ("grid", " ".join(written)) if random is None else ("random", random)
        raise bad_value(
            field,
            value,
            f"at most {most:,} runs; this has {count:,}. Give fewer values, draw some with "
            f"--random, or raise --most-runs",
        )


def _crossed(axes: Mapping[str, Axis]) -> list[dict[str, str]]:
    """Every combination; the last axis changes fastest."""
    lists = [axis for axis in axes.values() if not isinstance(axis, Range)]
    return [dict(zip(axes, values, strict=True)) for values in product(*lists)]


def _drawn(axes: Mapping[str, Axis], count: int, seed: int) -> list[dict[str, str]]:
    """Different combinations; a longer draw of the same seed begins with the shorter one."""
    stream, drawn = Random(seed), dict[tuple[str, ...], None]()
    for _ in range(PATIENCE * count + 1000):
        if len(drawn) == count:
            break
        drawn[tuple(_draw(axis, stream.random()) for axis in axes.values())] = None
    if len(drawn) < count:
        accepted = f"fewer runs: only {len(drawn)} different ones were drawn from these axes"
        raise bad_value("random", count, accepted)
    return [dict(zip(axes, values, strict=True)) for values in drawn]


def _draw(axis: Axis, share: float) -> str:
    return axis.draw(share) if isinstance(axis, Range) else axis[int(share * len(axis))]


def _variant(run: RunSpec, values: Mapping[str, str]) -> RunSpec:
    try:
        variant = with_values(run, values)
        canonical(variant)
    except SpecError as error:
        raise _of_grid(str(Pairs(values.items())), error) from None
    pairs = [f"{name}={value}" for name, value in values.items()]
    return replace(variant, label=" ".join(filter(None, (run.label, *pairs))))


def _of_grid(name: str, error: SpecError) -> SpecError:
    """An error of one run, with the values that make it."""
    return SpecError(f"grid: {name}: {error}") if name else error


def _check_different(variants: Mapping[Pairs, RunSpec]) -> None:
    """The same run by two names is a mistake: 0.001 is 1e-3, and defaults may be written out."""
    known: dict[RunSpec, Pairs] = {}
    for pairs, run in variants.items():
        full = canonical(replace(run, label=""))
        if full in known:
            raise bad_value("grid", pairs, f"different runs: it is the same as {known[full]}")
        known[full] = pairs


def check_fit(variants: Mapping[Any, RunSpec]) -> None:
    """What does not fit together is an error before anything is written, once for each kind."""
    seen: set[tuple[object, ...]] = set()
    for name, run in variants.items():
        full = canonical(run)
        kind = (full.task, full.model, full.methods, full.settings.stop, full.settings.steps)
        if kind not in seen:
            seen.add(kind)
            try:
                describe(full)
            except SpecError as error:
                raise _of_grid(str(name), error) from None


def _folder_names(variants: Iterable[Pairs]) -> dict[Pairs, str]:
    """The folder of each run; a long name, or one of several that look alike, ends in a hash.

    A sweep without an axis is one run.
    """
    names = {
        pairs: ",".join(folder_name(f"{name}={value}") for name, value in pairs) or "run"
        for pairs in variants
    }
    count = Counter(names.values())
    for pairs, name in names.items():
        if count[name] > 1 or len(name) > LONGEST_NAME:
            digest = hashlib.sha256(str(pairs).encode()).hexdigest()[:DIGITS]
            names[pairs] = f"{name[: LONGEST_NAME - DIGITS - 1]}-{digest}"
    return names
