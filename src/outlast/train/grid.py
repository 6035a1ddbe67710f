"""A grid of settings: one run for each combination of values, all trained together.

::

    lr=0.001,0.002  weight_decay=0,0.1     four runs: OUT/lr=0.001,weight_decay=0 and so on
    stop=never,success(probes=4, at=3)     two runs: a comma in brackets is a value's own
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from outlast.errors import bad_value
from outlast.registry import suggest
from outlast.runs import RUN
from outlast.specs import Spec, parse_value
from outlast.train.rows import SHARED
from outlast.train.settings import RunSpec, Settings


def spread(run: RunSpec, axes: Sequence[str], out: Path) -> list[tuple[RunSpec, Path]]:
    """The runs of a grid and their folders in `out`; without axes the run itself."""
    if not axes:
        return [(run, out)]
    read = [_axis(text) for text in axes]
    names = [name for name, _ in read]
    if len(set(names)) < len(names):
        raise bad_value("grid", " ".join(axes), "each setting once, with all its values")
    if (out / RUN).exists():
        raise bad_value("out", out, "a folder that is no run itself, for the runs of a grid")
    runs: list[tuple[RunSpec, Path]] = []
    for values in product(*(values for _, values in read)):
        changed = dict(zip(names, values, strict=True))
        settings = Settings.read(asdict(run.settings) | {k: _value(v) for k, v in changed.items()})
        shown = [f"{name}={value}" for name, value in changed.items()]
        if any(settings == other.settings for other, _ in runs):  # 0.001 is 1e-3
            raise bad_value(
                "grid", " ".join(axes), f"different values: {', '.join(shown)} is twice"
            )
        label = " ".join(filter(None, (run.label, *shown)))
        runs.append((replace(run, settings=settings, label=label), out / ",".join(shown)))
    return runs


def _value(text: str) -> Any:
    """A number or a word; a setting that is a spec is kept as it is written."""
    value = parse_value(text)
    return str(value) if isinstance(value, Spec) else value


def _axis(text: str) -> tuple[str, list[str]]:
    name, _, rest = text.partition("=")
    values = [value.strip() for value in _split(rest)]
    if not rest or not all(values) or len(set(values)) < len(values):
        raise bad_value("grid", text, "a setting and different values, such as lr=0.001,0.002")
    known = [f.name for f in fields(Settings) if f.name not in (*SHARED, "together")]
    if name.strip() not in known:
        accepted = f"a setting that may differ among runs trained together{suggest(name, known)}"
        raise bad_value("grid", text, accepted)
    return name.strip(), values


def _split(text: str) -> list[str]:
    """The pieces between commas that stand outside brackets."""
    pieces, depth = [""], 0
    for sign in text:
        depth += (sign in "([") - (sign in ")]")
        if sign == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += sign
    return pieces
