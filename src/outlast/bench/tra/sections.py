"""Threshold Relative Attention against what else there is: time, memory, and the error beside it.

Inputs are random with a QK-norm and threshold 0, so about half of the keys are kept; the share
that is (density) stands in the rows, as it was counted, with the spread of the gates. These are
``log sigmoid(2 z + 2)`` of a normal z unless a row says otherwise: nothing is cut short.
Peers: torch's attention by FlashAttention and by cuDNN (plain causal attention, which is less
work), the reference as it stands, and the reference compiled.

The error is the norm of the difference from what it should be in float64 over the norm of that,
for the last queries of the first head, whose rows need nothing of the others; the largest of output
and, with a backward pass, gradients. Each side is held against its own definition.

On a GPU the sections `early`, `short`, `decode` and `trained` time the replay of a CUDA graph, on
all sides: what they measure may take the GPU less time than the host needs to ask for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.bench.benchmark import Benchmark
from outlast.bench.graphs import compare_replays
from outlast.bench.precompile import precompile
from outlast.bench.timing import Bench, Row, Side, not_run
from outlast.bench.tra.inputs import (
    BATCH,
    FLASH,
    HEADS,
    PASSES,
    TORCH,
    TRA_EARLY,
    TRA_FUSED,
    Attend,
    Contender,
    Inputs,
    eager,
    fused,
    fused_early,
    fused_online,
)
from outlast.bench.tra.libraries import libraries
from outlast.bench.tra.trained import trained

WIDTHS, LENGTHS = (64, 128), (2048, 8192, 32768)
#: length and batch of short sequences; keys in a cache
SHORT, CACHES = ((64, 512), (128, 512), (256, 256), (512, 128)), (16384, 65536)
EAGER = {"eager": Contender(eager)}


def _sizes(bench: Bench, section: str, backward: bool) -> None:
    contenders = TORCH | TRA_FUSED | {"tra, online": Contender(fused_online)}
    for length in LENGTHS:
        for width in WIDTHS:
            what = f"n {length}, width {width}, {'fwd+bwd' if backward else 'forward'}"
            if bench.spent(section, what):
                return
            data = Inputs.draw(bench, (BATCH, HEADS, length, width))
            sides, errors = data.measured(contenders, backward)
            bench.compare(section, what, sides, errors, data.description())


def forward(bench: Bench) -> None:
    """The forward pass by width and length."""
    _sizes(bench, "forward", False)


def backward(bench: Bench) -> None:
    """Forward and backward pass by width and length."""
    _sizes(bench, "backward", True)


def against_eager(bench: Bench, length: int = 8192) -> None:
    """The reference as it stands, at a length that it can hold."""
    _against(bench, "eager", eager, length)


def against_compiled(bench: Bench, length: int = 8192) -> None:
    """The reference through torch.compile, which takes a while itself."""
    _against(bench, "compiled", torch.compile(eager), length)


def _against(bench: Bench, section: str, attend: Attend, length: int) -> None:
    data = Inputs.draw(bench, (BATCH, HEADS, length, 64))
    for name, backward in PASSES:
        sides, errors = data.measured(TRA_FUSED | {section: Contender(attend)}, backward)
        what = f"n {length}, width 64, {name}"
        bench.compare(section, what, sides, errors, data.description())


def early(bench: Bench) -> None:
    """Stopping early at 32k against plain attention in full."""
    for gate in (0.5, 0.9, 0.99, None):
        if bench.spent("early", "n 32768, width 64"):
            return
        data = Inputs.draw(bench, (BATCH, HEADS, 32768, 64), gate)
        note = data.description()
        for name, backward in PASSES:
            sides, errors = data.measured(FLASH | TRA_EARLY, backward)
            compare_replays(bench, "early", f"n 32768, width 64, {name}", sides, errors, note)


def short(bench: Bench, sizes: Sequence[tuple[int, int]] = SHORT) -> None:
    """Short sequences, thousands of heads: what training on short sequences is."""
    for length, batch in sizes:
        if bench.spent("short", f"n {length}, width 64"):
            return
        data = Inputs.draw(bench, (batch, 8, length, 64))
        sides, errors = data.measured(TORCH | TRA_FUSED | EAGER, backward=True)
        note = f"{batch * 8} heads in all, {data.description()}"
        compare_replays(bench, "short", f"n {length}, width 64, fwd+bwd", sides, errors, note)


def growth(bench: Bench, lengths: Sequence[int] = (16384, 32768)) -> None:
    """Twice the length: at most four times the time, and a little."""
    inputs = {n: Inputs.draw(bench, (BATCH, HEADS, n, 64)) for n in lengths}
    contender = TRA_FUSED["tra"]
    sides = {f"n {n}": data.side(contender, backward=True) for n, data in inputs.items()}
    errors = {f"n {n}": data.error(contender, backward=True) for n, data in inputs.items()}
    note = inputs[lengths[-1]].description()
    bench.compare("growth", "width 64, fwd+bwd", sides, errors, note)


def memory(bench: Bench) -> None:
    """Peak memory beyond the inputs, forward and backward."""
    for length, heads in ((8192, 4), (16384, HEADS), (32768, HEADS)):
        data = Inputs.draw(bench, (BATCH, heads, length, 64))
        contenders = FLASH | TRA_FUSED | (EAGER if length == 8192 else {})
        sides = {name: data.side(contender, True) for name, contender in contenders.items()}
        _memory(bench, f"n {length}, {BATCH * heads} heads", sides)


def _memory(bench: Bench, what: str, sides: dict[str, Side]) -> None:
    for name, side in sides.items():
        try:
            side()
            row = Row("memory", what, name, None, mib=bench.peak(side))
        except RuntimeError as error:
            row = Row("memory", what, name, None, note=not_run(error))
        bench.add(row)


def decode(bench: Bench, lengths: Sequence[int] = CACHES) -> None:
    """One token against a cache, and the time to read the cache once at copy speed."""
    for length in lengths:
        for width in WIDTHS:
            if bench.spent("decode", f"{length} keys, width {width}"):
                return
            data = Inputs.draw(bench, (BATCH, HEADS, length, width), queries=1)
            cache = torch.stack([data.k.detach(), data.v.detach()])
            copy = torch.empty_like(cache)

            def read_once(copy: Tensor = copy, cache: Tensor = cache) -> Tensor:
                half = cache.shape[0] // 2  # a copy reads and writes: half of it moves as much
                return copy[:half].copy_(cache[:half])

            sides, errors = data.measured(TRA_FUSED, backward=False)
            what, note = f"{length} keys, width {width}", data.description()
            sides = {"read once": read_once} | sides
            compare_replays(bench, "decode", what, sides, errors, note)


def cpu(bench: Bench) -> None:
    """Blocks of plain torch against the reference, on the CPU."""
    small, contenders = bench.on_cpu(), EAGER | TRA_FUSED
    for length in (4096, 8192) if bench.repeats > 2 else (256,):
        data = Inputs.draw(small, (1, 2, length, 64))
        sides = {name: data.side(contender, True) for name, contender in contenders.items()}
        _memory(small, f"cpu, n {length}, width 64", sides)
        errors = data.errors(contenders, True)
        small.compare("cpu", f"n {length}, width 64, fwd+bwd", sides, errors, data.description())


def prepare(bench: Bench, sections: Sequence[str]) -> None:
    """Compile what the sections will use, in parallel."""
    wide = {"forward", "backward", "decode"} & set(sections)
    widths = WIDTHS if wide else WIDTHS[:1]
    jobs = [(attend, width) for width in widths for attend in (fused, fused_online)]
    if {"early", "trained"} & set(sections):
        jobs.append((fused_early, WIDTHS[0]))
    precompile(_compile, jobs, max(1.0, bench.left() / 3))


def _compile(attend: Attend, width: int) -> None:
    small, contender = Bench(torch.device("cuda"), 1.0), Contender(attend)
    Inputs.draw(small, (BATCH, HEADS, 256, width)).side(contender, True)()
    Inputs.draw(small, (BATCH, HEADS, 2048, width), queries=1).side(contender, False)()


SECTIONS = {
    "forward": forward,
    "backward": backward,
    "early": early,
    "short": short,
    "decode": decode,
    "growth": growth,
    "memory": memory,
    "peers": libraries,
    "eager": against_eager,
    "compiled": against_compiled,
    "trained": trained,
    "cpu": cpu,
}
#: sections that take long, or need a run: they run if they are named
ON_REQUEST = ("compiled", "trained", "cpu")
TRA_BENCHMARK = Benchmark(
    "tra",
    SECTIONS,
    cpu_sections=("cpu", "trained"),
    defaults={"cuda": tuple(s for s in SECTIONS if s not in ON_REQUEST), "cpu": ("cpu",)},
    prepare=prepare,
    run_section="trained",
)
