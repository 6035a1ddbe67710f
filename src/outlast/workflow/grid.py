"""A grid of settings and methods: one run for each combination of values, all trained together.

::

    lr=0.001,0.002  weight_decay=0,0.1     four runs: OUT/lr=0.001,weight_decay=0 and so on
    stop=never,success(probes=4, at=3)     two runs: a comma in brackets is a value's own
    method=none,dat,dat + ema(0.9)         three runs: without a method, with one, with two

In the name of a folder each value is written without brackets, quotes and spaces:
``OUT/stop=success-probes=4-at=3``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from outlast.errors import SpecError, bad_value
from outlast.registry import suggest
from outlast.runs.folder import RUN
from outlast.runs.spec import RENAMED, RunSpec, Settings
from outlast.specs import Spec, parse_value
from outlast.train.seeds import SHARED
from outlast.workflow.create import canonical

#: the axis that is no setting; and how a run without any method is written there
METHOD, NONE = "method", "none"


def spread(run: RunSpec, axes: Sequence[str], out: Path) -> list[tuple[RunSpec, Path]]:
    """The runs of a grid and their folders in `out`; without axes the run itself."""
    if not axes:
        return [(run, out)]
    read = [_axis(text) for text in axes]
    names = [name for name, _ in read]
    again = [name for name in names if names.count(name) > 1]
    if again:
        accepted = f"each setting once, with all its values: {again[0]} is twice"
        raise bad_value("grid", " ".join(axes), accepted)
    if (out / RUN).exists():
        raise bad_value("out", out, "a folder that is no run itself, for the runs of a grid")
    if METHOD in names and run.methods:
        accepted = "none beside a grid of methods, whose values name them all: ema(0.9) + dat"
        raise bad_value(METHOD, " + ".join(run.methods), accepted)
    canonical(run)  # what is wrong with every run is not the grid's
    runs: dict[Path, RunSpec] = {}
    seen: set[RunSpec] = set()
    for values in product(*(values for _, values in read)):
        chosen = dict(zip(names, values, strict=True))
        shown = [f"{name}={value}" for name, value in chosen.items()]
        folder = out / ",".join(map(_plain, shown))
        try:
            made = _with(run, chosen)
            same = canonical(made)  # 0.001 is 1e-3, and a method may have its defaults written out
        except SpecError as error:
            raise SpecError(f"grid: {', '.join(shown)}: {error}") from None
        if same in seen:
            twice = f"different values: {', '.join(shown)} is twice"
            raise bad_value("grid", " ".join(axes), twice)
        if folder in runs:
            twice = f"values that make different names of folders: {folder.name} is twice"
            raise bad_value("grid", " ".join(axes), twice)
        seen.add(same)
        runs[folder] = replace(made, label=" ".join(filter(None, (run.label, *shown))))
    return [(made, folder) for folder, made in runs.items()]


def check_apart(settings: Settings, axes: Sequence[str]) -> None:
    """A setting that was given a value, and values in a grid too, is an error: which was meant?"""
    for axis in axes:
        name = _axis(axis)[0]
        value = getattr(settings, name, None)
        if value != getattr(Settings(), name, None):
            raise bad_value(name, value, f"none of its own beside a grid of {name}")


def _with(run: RunSpec, chosen: dict[str, str]) -> RunSpec:
    """A run with other values in the place of its own."""
    methods = _methods(chosen[METHOD]) if METHOD in chosen else run.methods
    settings = {name: _value(text) for name, text in chosen.items() if name != METHOD}
    return replace(run, settings=Settings.read(asdict(run.settings) | settings), methods=methods)


def _methods(text: str) -> tuple[str, ...]:
    """``dat + ema(0.9)``, one by one."""
    found = [method.strip() for method in _split(text, "+")]
    if not all(found) or (NONE in found and len(found) > 1):
        accepted = "methods joined by +, such as dat + ema(0.9), or none"
        raise bad_value("grid: method", text, accepted)
    return () if found == [NONE] else tuple(found)


def _plain(text: str) -> str:
    """A value as the name of a folder has it: nothing that a shell or a file system would mind."""
    return re.sub(r"[^\w.=+-]+", "-", re.sub(r"[\s)\]\"']", "", text))


def _value(text: str) -> Any:
    """A number or a word; a setting that is a spec is kept as it is written."""
    value = parse_value(text)
    return str(value) if isinstance(value, Spec) else value


def _axis(text: str) -> tuple[str, list[str]]:
    name, _, rest = text.partition("=")
    values = [value.strip() for value in _split(rest, ",")]
    if not rest or not all(values) or len(set(values)) < len(values):
        raise bad_value("grid", text, "a setting and different values, such as lr=0.001,0.002")
    name = RENAMED.get(name.strip(), name.strip())
    alike = (*SHARED, "seeds_at_once", "processes")  # what runs trained together have in common
    known = [f.name for f in fields(Settings) if f.name not in alike] + [METHOD]
    if name not in known:
        accepted = "a setting that may differ among runs trained together, or method"
        raise bad_value("grid", text, f"{accepted}{suggest(name, known)}")
    if name == METHOD:
        for value in values:
            _methods(value)
    return name, values


def _split(text: str, at: str) -> list[str]:
    """The pieces between signs that stand outside brackets and quotes."""
    pieces, depth = [""], 0
    for sign in re.findall(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|.""", text, re.DOTALL):
        depth += (sign in "([") - (sign in ")]")
        if sign == at and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += sign
    return pieces
