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

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from outlast.bench.figure import draw, seeds_of
from outlast.bench.graphs import busy, captured, kind_of, spans
from outlast.bench.mps import shared
from outlast.bench.plain import FULL, LAYOUTS, SMALL, Size, peer_batch, peer_step
from outlast.bench.processes import processes
from outlast.bench.timing import Bench, Row, Side, counted, not_run
from outlast.bench.warm import side_by_side
from outlast.machine import precision
from outlast.runs.spec import RunSpec, Settings
from outlast.train.step import Block
from outlast.train.trainer import Trainer

__all__ = ["LAYOUTS", "SECTIONS", "default", "draw", "prepare"]

#: steps in one turn: a turn of a few is longer than what starting it costs
STEPS = 3
#: blocks before steps by length are timed: each of the first ones meets lengths without a graph
WARM = 3
#: seeds at once: what is asked first, what lies between, and the most, by themselves for room
FIRST, BETWEEN, MOST = (1, 8, 32), (2, 4, 16), (64, 128)
MANY = 32
#: processes under MPS, for how many seconds they step, and how many they may take to begin
PROCESSES, SECONDS, PATIENCE = 16, 4.0, 90.0


@dataclass
class Loop:
    """The training of some seeds, brought to where its steps can be run one by one."""

    bench: Bench
    seeds: int
    size: Size
    kind: str = "auto"
    by_length: bool = False
    folder: TemporaryDirectory[str] = field(default_factory=TemporaryDirectory)

    def __post_init__(self) -> None:
        settings = Settings(
            steps=10**6,
            batch_size=self.size.batch,
            steps_per_block=self.size.block,
            probe_every=0,
            precision=self.kind,  # type: ignore[arg-type]
            by_length=self.by_length,
        )
        run = RunSpec(
            self.size.task, self.size.model, seeds=tuple(range(self.seeds)), settings=settings
        )
        self.fleet = Trainer([(run, Path(self.folder.name))], self.bench.device)
        (self.trainer,), (self.stepper,) = self.fleet.trainers, self.fleet.steppers
        plan = self.trainer.conductor.plan(0, STEPS)
        data = self.trainer.data(0, plan)
        self.table = Block.of(data, plan)
        self.whole = self.trainer.conductor.plan(0, settings.block)
        self.graph: torch.cuda.CUDAGraph | None = None
        if self.bench.device.type == "cuda":
            self.stepper.run(data, plan)  # captures a step
            (recorded,) = self.stepper.recorded.values()
            self.graph = next(iter(recorded.graphs.values()))

    @property
    def tokens(self) -> int:
        """Of one seed in one step."""
        return self.table.inputs[0, 0].numel()

    def steps(self) -> None:
        """A few steps of all seeds."""
        stepper = self.stepper
        stepper.cursor.zero_()
        if self.graph is not None:
            for _ in range(STEPS):
                self.graph.replay()
            return
        parts = len(self.trainer.task.parts)
        metrics = torch.zeros(len(self.table.inputs), self.seeds, 2, parts)
        for _ in range(STEPS):
            stepper._step(self.table, metrics, self.table.inputs.shape[-1])

    def block(self) -> None:
        """A whole block of training."""
        self.fleet.block()

    def data(self) -> None:
        """The data of a block, without the plan they are made by."""
        self.trainer.data(0, self.whole)

    def rate(self, ms: float) -> str:
        """A step's time as steps of a seed, and tokens, in a second."""
        return rates(self.seeds, self.tokens, ms)


def rates(seeds: int, tokens: int, ms: float) -> str:
    """Steps of a seed in a second, and millions of tokens."""
    each = seeds / ms * 1e3
    return f"{each:.0f} seed-steps/s, {each * tokens / 1e6:.2f} M tokens/s"


def _with_memory(bench: Bench, make: Callable[[], Loop]) -> tuple[Loop | str, float | None]:
    """A loop and the MiB it holds at most, or why there is none."""
    cuda = bench.device.type == "cuda"
    before = 0
    if cuda:
        gc.collect()  # loops of an earlier group hold their graphs until then
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    try:
        loop = make()
    except RuntimeError as error:
        return not_run(error), None
    return loop, (torch.cuda.max_memory_allocated() - before) / 2**20 if cuda else None


def _group(
    bench: Bench, section: str, kind: str, group: Sequence[int], told: set[int], size: Size
) -> None:
    """Steps of several numbers of seeds in turns; those in `told` are only measured against."""
    if bench.spent(section, counted(group[-1])):
        return
    with precision(kind, bench.device):
        made = {n: _with_memory(bench, lambda n=n: Loop(bench, n, size, kind)) for n in group}  # type: ignore[misc]
        loops = {n: loop for n, (loop, _) in made.items() if isinstance(loop, Loop)}
        found, failed = bench.times({str(n): loop.steps for n, loop in loops.items()})
    alone = found.get(str(group[0]))
    for seeds, (loop, mib) in made.items():
        if seeds in told:
            continue
        row = Row(section, counted(seeds), kind, None, mib=mib)
        if isinstance(loop, Loop) and str(seeds) in found:
            row.ms = found[str(seeds)] / STEPS
            row.against = found[str(seeds)] / alone if alone else None
            row.note = loop.rate(row.ms)
        else:
            row.note = loop if isinstance(loop, str) else failed[str(seeds)]
        bench.add(row)


def laid(bench: Bench, size: Size = FULL) -> Size:
    """A size with the layout that is asked for."""
    return replace(size, layout=bench.layout)


def scaling(bench: Bench) -> None:
    """A step against the number of seeds, with tf32 products."""
    _group(bench, "scaling", "auto", FIRST, set(), laid(bench))


def between(bench: Bench) -> None:
    """The same for the numbers of seeds between those."""
    _group(bench, "scaling", "auto", (1, *BETWEEN), {1}, laid(bench))


def large(bench: Bench) -> None:
    """The same for the most seeds, each beside one seed."""
    for seeds in MOST:
        _group(bench, "scaling", "auto", (1, seeds), {1}, laid(bench))


def half(bench: Bench) -> None:
    """The same with products and activations in bfloat16."""
    _group(bench, "bf16", "bf16", (1, 8, MANY), set(), laid(bench))


def _times(count: int, side: Side) -> Side:
    def several() -> None:
        for _ in range(count):
            side()

    return several


def _peers(bench: Bench, section: str, seeds: int, size: Size) -> None:
    """Ours against one seed at a time; the gains are of steps of a seed in a second."""
    if bench.spent(section, counted(seeds)):
        return
    with precision("auto", bench.device):
        ours = Loop(bench, seeds, size)
        sides = {"eager": _times(STEPS, peer_step(size, bench.device))}
        if bench.device.type == "cuda":
            sides["graph"] = _times(STEPS, peer_graph(size, bench.device))
        sides["outlast"] = ours.steps
        found, failed = bench.times(sides)
    each = {name: STEPS * (seeds if name == "outlast" else 1) / ms for name, ms in found.items()}
    for name in sides:
        count = seeds if name == "outlast" else 1
        row = Row(section, counted(count), name, None, note=failed.get(name, ""))
        if name in found:
            row.ms = found[name] / STEPS
            row.note = rates(count, ours.tokens, row.ms)
            if name != "outlast" and "outlast" in found:
                row.note += f"; outlast with {seeds}: {each['outlast'] / each[name]:.1f} x"
        bench.add(row)


def peers(bench: Bench) -> None:
    """One seed at a time in plain torch, eagerly and as a CUDA graph."""
    _peers(bench, "peers", MANY, laid(bench))


def peer_graph(size: Size, device: torch.device) -> Side:
    """A step of the peer, replayed."""
    with precision("auto", device):
        return captured(peer_step(size, device))


def _processes(bench: Bench, size: Size) -> Row:
    """The row of graphed peers in processes of their own under MPS, or why there are none."""
    row = Row("mps", counted(PROCESSES), "mps", None)
    make = partial(peer_graph, size, bench.device)
    try:
        rate, served = shared(PROCESSES, make, SECONDS, min(PATIENCE, bench.left()))
    except RuntimeError as error:
        row.note = not_run(error)
        return row
    row.ms = 1e3 * PROCESSES / rate
    row.note = rates(PROCESSES, peer_batch(size, torch.device("cpu")).inputs.numel(), row.ms)
    row.note += _beside(bench, rate) + ("" if served else "; no MPS server was seen")
    return row


def _beside(bench: Bench, rate: float) -> str:
    """What the steps of a seed a second that the peers were measured against are to a rate."""
    return "".join(
        f"; outlast with {seeds_of(row)}: {1e3 * seeds_of(row) / row.ms / rate:.1f} x"
        for row in bench.rows
        if row.section == "peers" and row.side == "outlast" and row.ms
    )


def mps(bench: Bench) -> None:
    """One seed in each of 16 processes that share the GPU through MPS, as CUDA graphs."""
    if bench.spent("mps", counted(PROCESSES)):
        return
    bench.add(_processes(bench, laid(bench)))


def _shares(bench: Bench, section: str, seeds: int, size: Size) -> None:
    if bench.spent(section, counted(seeds)):
        return
    with precision("auto", bench.device):
        loop = Loop(bench, seeds, size)
        steps = loop.trainer.settings.block
        sides = {"steps": loop.steps, "whole block": loop.block, "data": loop.data}
        found, _ = bench.times(sides)
        share = busy(loop.block) if bench.device.type == "cuda" else None
    if len(found) < len(sides):
        bench.add(Row(section, f"{seeds} seeds", "all", None, note="n/a: a side did not run"))
        return
    whole = found["whole block"] / steps
    notes = {
        "steps": f"{found['steps'] / STEPS / whole:.1%} of a block's time",
        "whole block": loop.rate(whole),
        "data": f"{found['data'] / steps / whole:.1%} of a block's time",
    }
    for name, note in notes.items():
        ms = found[name] / (STEPS if name == "steps" else steps)
        bench.add(Row(section, f"{seeds} seeds, a step's share", name, ms, ms / whole, note=note))
    if share is not None:
        bench.add(Row(section, f"{seeds} seeds", "idle", None, note=f"GPU idle {1 - share:.1%}"))


def loop(bench: Bench) -> None:
    """A block of training with all that belongs to it: data, plan, the host's look; idle time."""
    _shares(bench, "loop", MANY, laid(bench))


def _kernels(bench: Bench, kind: str, seeds: int, size: Size) -> None:
    """Where a step's time goes, by kinds of kernels."""
    what = f"{counted(seeds)}, {kind}"
    if bench.spent("kernels", what):
        return
    with precision(kind, bench.device):
        loop = Loop(bench, seeds, size, kind)
        bench.warm_up(loop.steps)
        seen = spans(loop.steps)
    if not seen:
        bench.add(Row("kernels", what, "all", None, note="n/a: the profiler saw none"))
        return
    took: dict[str, list[float]] = {}
    for name, start, end in seen:
        took.setdefault(kind_of(name), []).append((end - start) / 1e3)
    whole = sum(map(sum, took.values()))
    for name, each in sorted(took.items(), key=lambda item: -sum(item[1])):
        note = f"{sum(each) / whole:.1%}, {len(each) / STEPS:.3g} kernels"
        bench.add(Row("kernels", what, name, sum(each) / STEPS, note=note))


def kernels(bench: Bench) -> None:
    """What kinds of kernels a step is made of, as a profiler sees them."""
    for kind in ("auto", "bf16"):
        _kernels(bench, kind, MANY, laid(bench))


def _by_length(bench: Bench, section: str, kind: str, seeds: int, size: Size) -> None:
    if bench.spent(section, counted(seeds)):
        return
    with precision(kind, bench.device):
        padded, sorted_ = (Loop(bench, seeds, size, kind, by_length=by) for by in (False, True))
        for _ in range(WARM):  # until there is a graph for most lengths
            sorted_.block()
        sides = {"padded": padded.block, "by length": sorted_.block}
        found, failed = bench.times(sides)
    for name in sides:
        if name in found:
            ms = found[name] / padded.trainer.settings.block
            against = found[name] / found["padded"] if "padded" in found else None
            note = f"{seeds / ms * 1e3:.0f} seed-steps/s, {kind}"
            bench.add(Row(section, f"{counted(seeds)}, a step", name, ms, against, note=note))
        else:
            bench.add(Row(section, counted(seeds), name, None, note=failed[name]))


def lengths(bench: Bench) -> None:
    """A block whose steps have as many tokens as their own sequences need, and as all do."""
    _by_length(bench, "lengths", "bf16", MANY, laid(bench))


def cpu(bench: Bench) -> None:
    """A small model on the CPU: seeds together, against one at a time, and a whole block."""
    small, size = bench.on_cpu(), laid(bench, SMALL)
    _group(small, "cpu", "auto", (1, 2, 8), set(), size)
    _peers(small, "cpu peers", 8, size)
    if bench.repeats > 2:
        _shares(small, "cpu loop", 8, size)
        _by_length(small, "cpu lengths", "auto", 8, size)


def prepare(bench: Bench, sections: Sequence[str]) -> None:
    """Compile what the sections will use, side by side."""
    kinds = ("auto", "bf16") if {"bf16", "lengths", "kernels"} & set(sections) else ("auto",)
    jobs = [(mixer, kind) for kind in kinds for mixer in ("lstm", "attention", "mlp")]
    side_by_side(_compile, jobs, max(1.0, bench.left() / 3))


def _compile(mixer: str, kind: str) -> None:
    device = torch.device("cuda")
    settings = Settings(
        steps=1, steps_per_block=1, probe_every=0, checkpoint_every=1, precision=kind
    )  # type: ignore[arg-type]
    run = RunSpec(FULL.task, f"{mixer} @ {FULL.width}", (), (0, 1), settings)
    with TemporaryDirectory() as folder, precision(kind, device):
        Trainer([(run, Path(folder))], device).block()


SECTIONS: dict[str, Callable[[Bench], None]] = {
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
#: those that need no GPU
ON_CPU = ("cpu", "processes")


def default(device: torch.device) -> tuple[str, ...]:
    """What is run if nothing is asked for."""
    return tuple(s for s in SECTIONS if s not in ON_CPU) if device.type == "cuda" else ON_CPU
