"""Benchmarks that print their own truth: `outlast bench NAME`.

A bench is one module with `SECTIONS`, a dict of functions that take a `Bench` and add rows to it;
`default`, the sections to run on a kind of device; and `prepare`, which compiles what they need. It
may `draw` its rows into a PNG, and name as `ON_CPU` the sections that need no CUDA device, where
there are more than it runs there by default, and as `LAYOUTS` what `--layout` may be, the usual one
first. Adding one is a file and a line here.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from outlast.errors import bad_value

BENCHES = {name: f"outlast.bench.{name}" for name in ("tra", "seeds", "lstm")}


def bench_module(name: str) -> ModuleType:
    """The module of a bench."""
    if name not in BENCHES:
        raise bad_value("name", name, " | ".join(BENCHES))
    return import_module(BENCHES[name])
