"""Seeds of the demo's model on a CPU: alone, stacked, and shared by processes with a thread each.

A turn is a block of training as `outlast train` runs it, with its data and what goes to the
processes and back; without the probes and the checkpoints, which come once in many blocks. Beside
each way stands how many steps of a seed that is in a second, and the gain over one seed after the
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from outlast.bench.timing import Bench, Row
from outlast.machine import keep_freed_memory, precision
from outlast.runs.spec import RunSpec, Settings
from outlast.studies.dat import DEMO_HYBRID, DEMO_TASK
from outlast.train.trainer import Trainer
from outlast.train.workers import usable_threads
from outlast.workflow.create import canonical

#: widths, the demo's own first; seeds; steps of a block, a fifth of the usual
WIDTHS, SEEDS, STEPS = (64, 16, 128, 256), 8, 10
DEMO_WIDTH = "@ 64"
#: what makes the demo's hybrid, which is serial, the parallel one
PARALLEL = (" > attention", " | attention")


def processes(bench: Bench) -> None:
    """Ways to train seeds on the CPU, for models of several widths."""
    own = bench.on_cpu()
    with precision("auto", own.device):
        for width in WIDTHS if bench.repeats > 2 else WIDTHS[:1]:
            ways(own, width, SEEDS, usable_threads())


def ways(bench: Bench, width: int, seeds: int, count: int) -> None:
    """One seed and all of them in this process, one in each of `count` processes, and all there."""
    what = f"width {width}"
    if bench.spent("processes", what):
        return
    keep_freed_memory()
    asked = {"1 seed": (1, 1), f"{seeds} seeds": (seeds, 1)}
    if count > 1:
        asked[f"1 in each of {count}"] = (count, count)
        asked[f"{seeds} in {count}"] = (seeds, count)
    with ExitStack() as held:
        model = _model(width, bench.layout)
        fleets = {n: _fleet(held, model, range(s), p) for n, (s, p) in asked.items()}
        found, failed = bench.times({name: fleet.block for name, fleet in fleets.items()})
    rates = {name: asked[name][0] * STEPS / ms * 1e3 for name, ms in found.items()}
    for name in asked:
        row = Row("processes", what, name, None, note=failed.get(name, ""))
        if name in found:
            row.ms, row.note = found[name] / STEPS, f"{rates[name]:.0f} seed-steps/s"
            if "1 seed" in rates:
                row.note += f", {rates[name] / rates['1 seed']:.2f} x one after the other"
        bench.add(row)


def _model(width: int, layout: str) -> str:
    """The demo's, of another width, and parallel if asked for."""
    model = DEMO_HYBRID.replace(DEMO_WIDTH, f"@ {width}")
    return model.replace(*PARALLEL) if layout == "parallel" else model


def _fleet(held: ExitStack, model: str, seeds: Sequence[int], count: int) -> Trainer:
    """Seeds brought to where their blocks can be run, by so many processes."""
    settings = Settings(
        steps=10**6,
        batch_size=32,
        steps_per_block=STEPS,
        probe_every=0,
        checkpoint_every=STEPS,
        processes=count,
    )
    run = canonical(RunSpec(DEMO_TASK, model, (), tuple(seeds), settings))
    folder = held.enter_context(TemporaryDirectory())
    fleet = Trainer([(run, Path(folder))], torch.device("cpu"))
    held.callback(fleet.close)
    fleet.fit()
    return fleet
