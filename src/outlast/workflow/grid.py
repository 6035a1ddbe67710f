"""A grid of settings and methods: one run for each combination of values, all trained together.

::

    lr=0.001,0.002  weight_decay=0,0.1     four runs: OUT/lr=0.001,weight_decay=0 and so on
    stop=never,success(probes=4, at=3)     two runs: a comma in brackets is a value's own
    method=none,dat,dat + ema(0.9)         three runs: without a method, with one, with two

In the name of a folder each value is written without brackets, quotes and spaces:
``OUT/stop=success-probes=4-at=3``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from outlast.errors import SpecError, bad_value, conflict
from outlast.registry import suggest
from outlast.runs.folder import RUN, has_file, require_new_name
from outlast.runs.spec import NONE, RENAMED, RunSpec, Settings, read_seeds
from outlast.specs import Spec, parse_value
from outlast.train.seeds import SHARED
from outlast.workflow.create import canonical

#: the axes that are no settings
TASK, MODEL, METHOD, SEEDS = "task", "model", "method", "seeds"
NO_SETTING = (TASK, MODEL, METHOD, SEEDS)
#: settings of all runs that are trained together, and those that only say how they are stepped
COMMON = (*SHARED, "seeds_at_once", "processes")
#: what may differ among runs that are trained together
TOGETHER = (*(f.name for f in fields(Settings) if f.name not in COMMON), METHOD)
#: the most runs of a grid
MOST_RUNS = 1000


def expand_grid(run: RunSpec, axes: Sequence[str], out: Path) -> list[tuple[RunSpec, Path]]:
    """The runs of a grid and their folders in `out`; the values stand in the place of the run's."""
    accepted = "a setting that may differ among runs trained together, or method"
    values_by_name = read_axes(axes, TOGETHER, accepted)
    require_new_name(out)
    if has_file(out, RUN):
        raise bad_value("out", out, "a folder that is no run itself, for the runs of a grid")
    if METHOD in values_by_name and run.methods:
        raise conflict(METHOD, f"--method {' + '.join(run.methods)}", "--grid method=...")
    count = math.prod(map(len, values_by_name.values()))
    if count > MOST_RUNS:
        raise bad_value("grid", " ".join(axes), f"at most {MOST_RUNS:,} runs; this has {count:,}")
    canonical(run)  # what is wrong with every run is not the grid's
    runs: dict[Path, RunSpec] = {}
    known: set[RunSpec] = set()
    for values in product(*values_by_name.values()):
        chosen = dict(zip(values_by_name, values, strict=True))
        pairs = [f"{name}={value}" for name, value in chosen.items()]
        folder = out / ",".join(map(folder_name, pairs))
        try:
            variant = with_values(run, chosen)
            full = canonical(variant)  # 0.001 is 1e-3, and defaults may be written out
        except SpecError as error:
            raise SpecError(f"grid: {', '.join(pairs)}: {error}") from None
        if full in known:
            accepted = f"different values: {', '.join(pairs)} is twice"
            raise bad_value("grid", " ".join(axes), accepted)
        if folder in runs:
            accepted = f"values that make different names of folders: {folder.name} is twice"
            raise bad_value("grid", " ".join(axes), accepted)
        known.add(full)
        runs[folder] = replace(variant, label=" ".join(filter(None, (run.label, *pairs))))
    return [(variant, folder) for folder, variant in runs.items()]


def with_values(run: RunSpec, chosen: Mapping[str, str]) -> RunSpec:
    """A run with other values in the place of its own, by the names of their axes."""
    settings = {name: _value(name, text) for name, text in chosen.items() if name not in NO_SETTING}
    return replace(
        run,
        task=chosen.get(TASK, run.task),
        model=chosen.get(MODEL, run.model),
        methods=_methods(chosen[METHOD]) if METHOD in chosen else run.methods,
        seeds=read_seeds(chosen[SEEDS]) if SEEDS in chosen else run.seeds,
        settings=Settings.read(asdict(run.settings) | settings),
    )


def _methods(text: str) -> tuple[str, ...]:
    """``dat + ema(0.9)``, one by one."""
    methods = [method.strip() for method in _split(text, "+")]
    if not all(methods) or (NONE in methods and len(methods) > 1):
        accepted = "methods joined by +, such as dat + ema(0.9), or none"
        raise bad_value("grid: method", text, accepted)
    return () if methods == [NONE] else tuple(methods)


def folder_name(text: str) -> str:
    """A value as the name of a folder has it: nothing that a shell or a file system would mind."""
    return re.sub(r"[^\w.=+-]+", "-", re.sub(r"[\s)\]\"']", "", text))


def _value(name: str, text: str) -> Any:
    """A number or a word; a setting that is a spec is kept as it is written."""
    if name == "keep_checkpoints":  # every=500 is no value
        return text
    value = parse_value(text)
    return str(value) if isinstance(value, Spec) else value


def read_axes(axes: Sequence[str], names: Sequence[str], accepted: str) -> dict[str, list[str]]:
    """The values of each axis by its name, which is one of `names`; `accepted` says what they are.

    ::

        lr=0.001,0.002     method=none,dat + ema(0.9)     model=lstm > mlp @ 16, norm=rms,mlp @ 16
    """
    values_by_name: dict[str, list[str]] = {}
    for text in axes:
        name, values = _read_axis(text, names, accepted)
        if name in values_by_name:
            first = f"--grid {name}={','.join(values_by_name[name])}"
            raise conflict(name, first, f"--grid {text}")
        values_by_name[name] = values
    return values_by_name


def _read_axis(text: str, names: Sequence[str], accepted: str) -> tuple[str, list[str]]:
    written, _, rest = text.partition("=")
    name = RENAMED.get(written.strip(), written.strip())
    values = [value.strip() for value in _split(rest, ",")]
    if name == MODEL:
        values = _with_options(values)
    if not rest or not all(values) or len(set(values)) < len(values):
        raise bad_value("grid", text, "a setting and different values, such as lr=0.001,0.002")
    if name not in names:
        raise bad_value("grid", text, f"{accepted}{suggest(name, names)}")
    if name == METHOD:
        for value in values:
            _methods(value)
    return name, values


def _with_options(pieces: Sequence[str]) -> list[str]:
    """Model lines whole: a comma also stands before an option, as in ``mlp @ 16, norm=rms``."""
    lines: list[str] = []
    for piece in pieces:
        if lines and re.match(r"\w+\s*=", piece):
            lines[-1] += f", {piece}"
        else:
            lines.append(piece)
    return lines


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
