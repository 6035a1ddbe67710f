"""The fused LSTM against `nn.LSTM`, forward and backward, with the error of its gradients beside.

Both sides are a whole layer: the product with the inputs, the recurrence, and the gradients of the
inputs and of all weights. Peers are torch's layer in float16 and float32 (cuDNN's on a GPU). What
is said to be graphed is replayed as a CUDA graph, which takes the host's share away from all.
Where one seed goes by cuDNN (the note says so), our kernel stands beside it as `ours, fused`; the
note also says where our kernel's weights are not on chip but read at every step (`streamed`).

The error is the norm of the difference from torch's layer in float64 over its norm, the largest of
the output and the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outlast.bench.benchmark import Benchmark
from outlast.bench.graphs import captured
from outlast.bench.lstm.layers import Case
from outlast.bench.precompile import precompile
from outlast.bench.timing import Bench, Row, Side, not_run
from outlast.kernels.lstm.op import form
from outlast.machine import precision
from outlast.train.memory import count_seeds

WIDTHS, LENGTHS, BATCHES = (64, 128), (64, 256, 1024), (16, 128)
#: a narrow layer and the widest that is fused, at a few sizes
EDGES = (16, 256)
SEEDS = 32


def _sides(
    case: Case, graphed: bool, halves: bool = True
) -> tuple[dict[str, Side], dict[str, float]]:
    sides = {"torch fp16": case.torchs(torch.float16)} if halves else {}
    sides["torch fp32"] = case.torchs(torch.float32)
    for half in (False, True) if halves else (False,):
        kind = ", bf16" if half else ""
        sides[f"ours{kind}"] = case.ours(half)
        if case.by_cudnn():
            sides[f"ours, fused{kind}"] = case.ours(half, fused=True)
    errors = {name: case.error(side) for name, side in sides.items()}
    return {n: captured(side) if graphed else side for n, side in sides.items()}, errors


def _measure(
    bench: Bench, section: str, sizes: Sequence[tuple[int, int, int]], seeds: int, graphed: bool
) -> None:
    for width, steps, batch in sizes:
        what = f"width {width}, {steps} steps, {batch} rows"
        if bench.spent(section, what):
            return
        with precision("auto", bench.device):
            try:
                _cell(bench, section, what, (width, steps, batch, seeds), graphed)
            except torch.OutOfMemoryError as error:
                bench.add(Row(section, what, "all", None, note=not_run(error)))


def _cell(
    bench: Bench, section: str, what: str, size: tuple[int, int, int, int], graphed: bool
) -> None:
    """One size; a function, so that its graphs are gone before the next has its own."""
    case = Case.draw(bench.device, *size)
    sides, errors = _sides(case, graphed, halves=bench.device.type == "cuda")
    note = ("graphed, " if graphed else "plain, ") + count_seeds(size[-1])
    note += ", ours by cuDNN" if case.by_cudnn() else ""
    note += ", ours streamed" if form(case.x, case.weights[1]) == "streamed" else ""
    bench.compare(section, what, sides, errors, note)


def one(bench: Bench) -> None:
    """One seed, graphed, by width, steps and rows."""
    sizes = [(w, t, b) for w in WIDTHS for t in LENGTHS for b in BATCHES]
    sizes += [(w, t, 128) for w in EDGES for t in (64, 256)]
    _measure(bench, "one", sizes, 1, True)


def plain(bench: Bench) -> None:
    """One seed without graphs, where the host has its share."""
    _measure(bench, "plain", [(w, 64, 128) for w in WIDTHS], 1, False)


def many(bench: Bench) -> None:
    """Many seeds in one call against a loop over them; what takes long comes late."""
    sizes = [(w, t, b) for t in LENGTHS for b in reversed(BATCHES) for w in WIDTHS]
    sizes += [(w, 64, 128) for w in EDGES]
    _measure(bench, "many", sizes, SEEDS, True)


def cpu(bench: Bench) -> None:
    """Small layers on the CPU: one seed and eight."""
    _measure(bench.on_cpu(), "cpu", [(32, 32, 16)], 1, False)
    _measure(bench.on_cpu(), "cpu many", [(32, 32, 16)], 8, False)


def prepare(bench: Bench, sections: Sequence[str]) -> None:
    """Compile what the sections will use, in parallel."""
    jobs = [(width, half) for width in (*WIDTHS, *EDGES) for half in (False, True)]
    precompile(_compile, jobs, max(1.0, bench.left() / 3))


def _compile(width: int, half: bool) -> None:
    device = torch.device("cuda")
    with precision("auto", device):
        Case.draw(device, width, 2, 16, 2).ours(half)()


LSTM_BENCHMARK = Benchmark(
    "lstm",
    {"one": one, "plain": plain, "many": many, "cpu": cpu},
    cpu_sections=("cpu",),
    defaults={"cuda": ("one", "plain", "many"), "cpu": ("cpu",)},
    prepare=prepare,
)
