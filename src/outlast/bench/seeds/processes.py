"""Seeds of the demo's model on a CPU: alone, stacked, and shared by processes with a thread each.

A round is a block of training as `outlast train` runs it, with its data and what goes to the
processes and back; without the probes and the checkpoints, which come once in many blocks. Beside
each way stands how many steps of a seed that is in a second, and the gain over one seed after the
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from outlast.bench.seeds.loop import block_settings
from outlast.bench.timing import Bench, Row
from outlast.machine import keep_freed_memory, precision, usable_threads
from outlast.runs.spec import RunSpec
from outlast.studies.dat import DEMO_HYBRID, DEMO_TASK
from outlast.train.trainer import Trainer
from outlast.workflow.create import canonical

#: widths, the demo's own first; seeds; steps of a block, a fifth of the usual
WIDTHS, SEEDS, STEPS = (64, 16, 128, 256), 8, 10
DEMO_WIDTH = "@ 64"
#: what makes the demo's hybrid, which is serial, the parallel one
PARALLEL = (" > attention", " | attention")


def processes(bench: Bench) -> None:
    """Ways to train seeds on the CPU, for models of several widths."""
    on_cpu = bench.on_cpu()
    with precision("auto", on_cpu.device):
        for width in WIDTHS if bench.repeats > 2 else WIDTHS[:1]:
            ways(on_cpu, width, SEEDS, usable_threads())


def ways(bench: Bench, width: int, seeds: int, count: int) -> None:
    """One seed and all of them in this process, one in each of `count` processes, and all there."""
    what = f"width {width}"
    if bench.spent("processes", what):
        return
    keep_freed_memory()
    counts = {"1 seed": (1, 1), f"{seeds} seeds": (seeds, 1)}
    if count > 1:
        counts[f"1 in each of {count}"] = (count, count)
        counts[f"{seeds} in {count}"] = (seeds, count)
    with ExitStack() as stack:
        model = _model(width, bench.layout)
        trainers = {n: _trainer(stack, model, range(s), p) for n, (s, p) in counts.items()}
        times, failed = bench.times({n: partial(t.train, blocks=1) for n, t in trainers.items()})
    rates = {name: counts[name][0] * STEPS / ms * 1e3 for name, ms in times.items()}
    for name in counts:
        row = Row("processes", what, name, None, note=failed.get(name, ""))
        if name in times:
            row.ms, row.note = times[name] / STEPS, f"{rates[name]:.0f} seed-steps/s"
            if "1 seed" in rates:
                row.note += f", {rates[name] / rates['1 seed']:.2f} x one after the other"
        bench.add(row)


def _model(width: int, layout: str) -> str:
    """The demo's, of another width, and parallel if asked for."""
    model = DEMO_HYBRID.replace(DEMO_WIDTH, f"@ {width}")
    return model.replace(*PARALLEL) if layout == "parallel" else model


def _trainer(stack: ExitStack, model: str, seeds: Sequence[int], count: int) -> Trainer:
    """Seeds brought to where their blocks can be run, by so many processes."""
    settings = block_settings(STEPS, batch_size=32, processes=count)
    run = canonical(RunSpec(DEMO_TASK, model, (), tuple(seeds), settings))
    folder = stack.enter_context(TemporaryDirectory())
    trainer = Trainer([(run, Path(folder))], torch.device("cpu"))
    stack.callback(trainer.close)
    trainer.choose_waves()
    return trainer
