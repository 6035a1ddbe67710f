"""Many seeds trained at once: time and memory of a step against their number, and the peers.

A step is forward, losses by part, backward, clipping and AdamW of all seeds, as training runs it:
on a GPU the replay of a CUDA graph. `loop` is a whole block of steps as `outlast train` runs it,
with its data, the methods' plan and the host's look at the losses; without the probes and the
checkpoints, which come once in many blocks.

Peers (`plain.py`) train one seed of the same model in plain torch on one batch over and over:
eagerly, as a CUDA graph, and as a CUDA graph in each of 16 processes that share the GPU (`mps.py`).
The JAX peer is a program of its own, `benchmarks/jax_seeds.py`. Seeds on a CPU, over processes and
not, are in `processes.py`.

The hybrid is `4 x (lstm > attention > mlp) @ 128`, or with `--layout parallel`
`4 x (lstm | attention > mlp) @ 128`; on a CPU a smaller one of the same layout.

Times are of one step; the notes say how many steps of a seed, and tokens, that is in a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from outlast.bench.benchmark import Benchmark
from outlast.bench.precompile import precompile
from outlast.bench.seeds.figure import draw, seeds_of
from outlast.bench.seeds.loop import STEPS, Loop, compile_mixer, loop_with_memory, rates
from outlast.bench.seeds.mps import shared_rate
from outlast.bench.seeds.plain import FULL, LAYOUTS, SMALL, Size, peer_batch, peer_graph, peer_step
from outlast.bench.seeds.processes import processes
from outlast.bench.seeds.profile import busy_share, kernel_spans, kind_of
from outlast.bench.timing import Bench, Row, Side, not_run
from outlast.machine import precision
from outlast.train.memory import count_seeds

#: blocks before steps by length are timed: each of the first ones meets lengths without a graph
WARM = 3
#: numbers of seeds: what is asked first, what lies between, and the most, by themselves for room
FIRST, BETWEEN, MOST = (1, 8, 32), (2, 4, 16), (64, 128)
MANY = 32
#: processes under MPS, for how many seconds they step, and how many they may take to begin
PROCESSES, SECONDS, PATIENCE = 16, 4.0, 90.0


def _scaling(
    bench: Bench,
    section: str,
    precision_name: str,
    numbers: Sequence[int],
    size: Size,
    hide_first: bool = False,
) -> None:
    """Steps of several numbers of seeds in turns, in a precision.

    Times are given against the first number. It has no row if it is in the table already.
    """
    if bench.spent(section, count_seeds(numbers[-1])):
        return
    with precision(precision_name, bench.device):
        built = {
            n: loop_with_memory(bench, partial(Loop, bench, n, size, precision_name))
            for n in numbers
        }
        loops = {n: loop for n, (loop, _) in built.items() if isinstance(loop, Loop)}
        times, failed = bench.times({str(n): loop.steps for n, loop in loops.items()})
    alone = times.get(str(numbers[0]))
    for seeds in numbers[1:] if hide_first else numbers:
        loop, mib = built[seeds]
        row = Row(section, count_seeds(seeds), precision_name, None, mib=mib)
        if isinstance(loop, Loop) and str(seeds) in times:
            row.ms = times[str(seeds)] / STEPS
            row.against = times[str(seeds)] / alone if alone else None
            row.note = loop.rate(row.ms)
        else:
            row.note = loop if isinstance(loop, str) else failed[str(seeds)]
        bench.add(row)


def with_layout(bench: Bench, size: Size = FULL) -> Size:
    """A size with the layout that was asked for."""
    return replace(size, layout=bench.layout)


def scaling(bench: Bench) -> None:
    """A step against the number of seeds, with tf32 matmuls."""
    _scaling(bench, "scaling", "auto", FIRST, with_layout(bench))


def between(bench: Bench) -> None:
    """The same for the numbers of seeds between those."""
    _scaling(bench, "scaling", "auto", (1, *BETWEEN), with_layout(bench), hide_first=True)


def large(bench: Bench) -> None:
    """The same for the most seeds, each beside one seed."""
    for seeds in MOST:
        _scaling(bench, "scaling", "auto", (1, seeds), with_layout(bench), hide_first=True)


def half(bench: Bench) -> None:
    """The same with matmuls and activations in bfloat16."""
    _scaling(bench, "bf16", "bf16", (1, 8, MANY), with_layout(bench))


def _repeated(count: int, side: Side) -> Side:
    def several() -> None:
        for _ in range(count):
            side()

    return several


def _peers(bench: Bench, section: str, seeds: int, size: Size) -> None:
    """Ours against one seed at a time; the gains are of steps of a seed in a second."""
    if bench.spent(section, count_seeds(seeds)):
        return
    with precision("auto", bench.device):
        ours = Loop(bench, seeds, size)
        sides = {"eager": _repeated(STEPS, peer_step(size, bench.device))}
        if bench.device.type == "cuda":
            sides["graph"] = _repeated(STEPS, peer_graph(size, bench.device))
        sides["outlast"] = ours.steps
        times, failed = bench.times(sides)
    speeds = {name: STEPS * (seeds if name == "outlast" else 1) / ms for name, ms in times.items()}
    for name in sides:
        count = seeds if name == "outlast" else 1
        row = Row(section, count_seeds(count), name, None, note=failed.get(name, ""))
        if name in times:
            row.ms = times[name] / STEPS
            row.note = rates(count, ours.tokens, row.ms)
            if name != "outlast" and "outlast" in times:
                row.note += f"; outlast with {seeds}: {speeds['outlast'] / speeds[name]:.1f} x"
        bench.add(row)


def peers(bench: Bench) -> None:
    """One seed at a time in plain torch, eagerly and as a CUDA graph."""
    _peers(bench, "peers", MANY, with_layout(bench))


def _against_ours(bench: Bench, rate: float) -> str:
    """How many times as fast ours were, in steps of a seed a second, when the peers were timed."""
    return "".join(
        f"; outlast with {seeds_of(row)}: {1e3 * seeds_of(row) / row.ms / rate:.1f} x"
        for row in bench.rows
        if row.section == "peers" and row.side == "outlast" and row.ms
    )


def mps(bench: Bench) -> None:
    """One seed in each of 16 processes that share the GPU through MPS, as CUDA graphs."""
    if bench.spent("mps", count_seeds(PROCESSES)):
        return
    row, size = Row("mps", count_seeds(PROCESSES), "mps", None), with_layout(bench)
    make = partial(peer_graph, size, bench.device)
    try:
        rate, served = shared_rate(PROCESSES, make, SECONDS, min(PATIENCE, bench.left()))
        row.ms = 1e3 * PROCESSES / rate
        row.note = rates(PROCESSES, peer_batch(size, torch.device("cpu")).inputs.numel(), row.ms)
        row.note += _against_ours(bench, rate) + ("" if served else "; no MPS server was seen")
    except RuntimeError as error:
        row.note = not_run(error)
    bench.add(row)


def _block_shares(bench: Bench, section: str, seeds: int, size: Size) -> None:
    if bench.spent(section, count_seeds(seeds)):
        return
    with precision("auto", bench.device):
        loop = Loop(bench, seeds, size)
        steps = loop.run_state.settings.steps_per_block
        sides = {"steps": loop.steps, "whole block": loop.block, "data": loop.data}
        times, _ = bench.times(sides)
        share = busy_share(loop.block) if bench.device.type == "cuda" else None
    if len(times) < len(sides):
        bench.add(Row(section, f"{seeds} seeds", "all", None, note="n/a: a side did not run"))
        return
    whole = times["whole block"] / steps
    notes = {
        "steps": f"{times['steps'] / STEPS / whole:.1%} of a block's time",
        "whole block": loop.rate(whole),
        "data": f"{times['data'] / steps / whole:.1%} of a block's time",
    }
    for name, note in notes.items():
        ms = times[name] / (STEPS if name == "steps" else steps)
        bench.add(Row(section, f"{seeds} seeds, a step's share", name, ms, ms / whole, note=note))
    if share is not None:
        bench.add(Row(section, f"{seeds} seeds", "idle", None, note=f"GPU idle {1 - share:.1%}"))


def loop(bench: Bench) -> None:
    """A block of training with all that belongs to it: data, plan, the host's look; idle time."""
    _block_shares(bench, "loop", MANY, with_layout(bench))


def _kernels(bench: Bench, precision_name: str, seeds: int, size: Size) -> None:
    """Where a step's time goes, by kinds of kernels, in a precision."""
    what = f"{count_seeds(seeds)}, {precision_name}"
    if bench.spent("kernels", what):
        return
    with precision(precision_name, bench.device):
        loop = Loop(bench, seeds, size, precision_name)
        bench.warm_up(loop.steps)
        spans = kernel_spans(loop.steps)
    if not spans:
        bench.add(Row("kernels", what, "all", None, note="n/a: the profiler saw none"))
        return
    times: dict[str, list[float]] = {}
    for kernel, start, end in spans:
        times.setdefault(kind_of(kernel), []).append((end - start) / 1e3)
    whole = sum(map(sum, times.values()))
    for kind, each in sorted(times.items(), key=lambda item: -sum(item[1])):
        note = f"{sum(each) / whole:.1%}, {len(each) / STEPS:.3g} kernels"
        bench.add(Row("kernels", what, kind, sum(each) / STEPS, note=note))


def kernels(bench: Bench) -> None:
    """What kinds of kernels a step is made of, as a profiler sees them."""
    for name in ("auto", "bf16"):
        _kernels(bench, name, MANY, with_layout(bench))


def _by_length(bench: Bench, section: str, precision_name: str, seeds: int, size: Size) -> None:
    if bench.spent(section, count_seeds(seeds)):
        return
    with precision(precision_name, bench.device):
        padded, by_length = (
            Loop(bench, seeds, size, precision_name, by_length=by) for by in (False, True)
        )
        for _ in range(WARM):  # until there is a graph for most lengths
            by_length.block()
        sides = {"padded": padded.block, "by length": by_length.block}
        bench.compare(
            section,
            f"{count_seeds(seeds)}, a step",
            sides,
            note=lambda ms: f"{seeds / ms * 1e3:.0f} seed-steps/s, {precision_name}",
            steps=padded.run_state.settings.steps_per_block,
        )


def lengths(bench: Bench) -> None:
    """A block whose steps have as many tokens as their own sequences need, and as all do."""
    _by_length(bench, "lengths", "bf16", MANY, with_layout(bench))


def cpu(bench: Bench) -> None:
    """A small model on the CPU: seeds together, against one at a time, and a whole block."""
    small, size = bench.on_cpu(), with_layout(bench, SMALL)
    _scaling(small, "cpu", "auto", (1, 2, 8), size)
    _peers(small, "cpu peers", 8, size)
    if bench.repeats > 2:
        _block_shares(small, "cpu loop", 8, size)
        _by_length(small, "cpu lengths", "auto", 8, size)


def prepare(bench: Bench, sections: Sequence[str]) -> None:
    """Compile what the sections will use, in parallel."""
    names = ("auto", "bf16") if {"bf16", "lengths", "kernels"} & set(sections) else ("auto",)
    jobs = [(mixer, name) for name in names for mixer in ("lstm", "attention", "mlp")]
    precompile(compile_mixer, jobs, max(1.0, bench.left() / 3))


SECTIONS = {
    "scaling": scaling,
    "peers": peers,
    "mps": mps,
    "bf16": half,
    "loop": loop,
    "lengths": lengths,
    "kernels": kernels,
    "between": between,
    "large": large,
    "cpu": cpu,
    "processes": processes,
}
ON_CPU = ("cpu", "processes")
SEEDS_BENCHMARK = Benchmark(
    "seeds",
    SECTIONS,
    cpu_sections=ON_CPU,
    defaults={"cuda": tuple(s for s in SECTIONS if s not in ON_CPU), "cpu": ON_CPU},
    prepare=prepare,
    layouts=LAYOUTS,
    draw=draw,
)
