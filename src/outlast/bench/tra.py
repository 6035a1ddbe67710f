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

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from outlast.bench.graphs import captured
from outlast.bench.timing import FAILURES, Bench, Row, Side, not_run
from outlast.bench.tra_sides import (
    BATCH,
    HEADS,
    PLAIN,
    Attend,
    Inputs,
    eager,
    fused,
    fused_early,
    fused_online,
    peers,
    sdpa,
)
from outlast.bench.warm import side_by_side

WIDTHS, LENGTHS = (64, 128), (2048, 8192, 32768)
#: length and batch of short sequences; keys in a cache
SHORT, CACHES = ((64, 512), (128, 512), (256, 256), (512, 128)), (16384, 65536)
GRAPHED = "replay of a CUDA graph"


def replayed(bench: Bench, sides: dict[str, Side]) -> dict[str, Side]:
    """On a GPU each side as the replay of a CUDA graph; one that cannot be fails when timed."""
    if bench.device.type != "cuda":
        return sides
    found = {}
    for name, side in sides.items():
        try:
            found[name] = captured(side)
        except FAILURES as error:
            found[name] = _failing(str(error))
    return found


def _failing(why: str) -> Side:
    def side() -> None:
        raise RuntimeError(why)

    return side


def graphed(bench: Bench, note: str) -> str:
    """The note of what was timed so."""
    return f"{note}, {GRAPHED}" if bench.device.type == "cuda" else note


def _sizes(bench: Bench, section: str, backward: bool) -> None:
    for length in LENGTHS:
        for width in WIDTHS:
            what = f"n {length}, width {width}, {'fwd+bwd' if backward else 'forward'}"
            if bench.spent(section, what):
                return
            data = Inputs.draw(bench, (BATCH, HEADS, length, width))
            ours = {"tra": fused, "tra, online": fused_online}
            sides, errors = peers(data, backward)
            sides |= {name: data.side(attend, backward) for name, attend in ours.items()}
            errors |= {name: data.error(attend, backward) for name, attend in ours.items()}
            bench.compare(section, what, sides, errors, data.words())


def forward(bench: Bench) -> None:
    """The forward pass by width and length."""
    _sizes(bench, "forward", False)


def backward(bench: Bench) -> None:
    """Forward and backward pass by width and length."""
    _sizes(bench, "backward", True)


def against_eager(bench: Bench, length: int = 8192) -> None:
    """The reference as it stands, at a length that it can hold."""
    _written_out(bench, "eager", eager, length)


def against_compiled(bench: Bench, length: int = 8192) -> None:
    """The reference through torch.compile, which takes a while itself."""
    _written_out(bench, "compiled", torch.compile(eager), length)


def _written_out(bench: Bench, section: str, attend: Attend, length: int) -> None:
    data = Inputs.draw(bench, (BATCH, HEADS, length, 64))
    both = {"tra": fused, section: attend}
    for name, learns in (("forward", False), ("fwd+bwd", True)):
        sides = {side: data.side(made, learns) for side, made in both.items()}
        errors = data.errors(learns, both)
        bench.compare(section, f"n {length}, width 64, {name}", sides, errors, data.words())


def early(bench: Bench) -> None:
    """Stopping early at 32k against plain attention in full."""
    for gate in (0.5, 0.9, 0.99, None):
        if bench.spent("early", "n 32768, width 64"):
            return
        data = Inputs.draw(bench, (BATCH, HEADS, 32768, 64), gate)
        note = data.words()
        for name, learns in (("forward", False), ("fwd+bwd", True)):
            plain = sdpa("sdpa flash")
            sides = {"sdpa flash": data.side(plain, learns, gated=False)}
            sides["tra, early"] = data.side(fused_early, learns)
            errors = data.errors(learns, {"sdpa flash": plain}, PLAIN)
            errors["tra, early"] = data.error(fused_early, learns)
            what, words = f"n 32768, width 64, {name}", graphed(bench, note)
            bench.compare("early", what, replayed(bench, sides), errors, words)


def short(bench: Bench, sizes: Sequence[tuple[int, int]] = SHORT) -> None:
    """Short sequences, thousands of heads: what training on short sequences is."""
    for length, batch in sizes:
        if bench.spent("short", f"n {length}, width 64"):
            return
        data = Inputs.draw(bench, (batch, 8, length, 64))
        both = {"tra": fused, "eager": eager}
        sides, errors = peers(data, True)
        sides |= {name: data.side(attend, True) for name, attend in both.items()}
        errors |= data.errors(True, both)
        note = graphed(bench, f"{batch * 8} heads in all, {data.words()}")
        what = f"n {length}, width 64, fwd+bwd"
        bench.compare("short", what, replayed(bench, sides), errors, note)


def growth(bench: Bench, lengths: Sequence[int] = (16384, 32768)) -> None:
    """Twice the length: at most four times the time, and a little."""
    made = {n: Inputs.draw(bench, (BATCH, HEADS, n, 64)) for n in lengths}
    sides = {f"n {n}": data.side(fused, True) for n, data in made.items()}
    errors = {f"n {n}": data.error(fused, True) for n, data in made.items()}
    note = made[lengths[-1]].words()
    bench.compare("growth", "width 64, fwd+bwd", sides, errors, note)


def memory(bench: Bench) -> None:
    """Peak memory beyond the inputs, forward and backward."""
    for length, heads in ((8192, 4), (16384, HEADS), (32768, HEADS)):
        data = Inputs.draw(bench, (BATCH, heads, length, 64))
        sides = {"sdpa flash": data.side(sdpa("sdpa flash"), True, gated=False)}
        sides["tra"] = data.side(fused, True)
        if length == 8192:
            sides["eager"] = data.side(eager, True)
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

            sides = {"read once": read_once, "tra": data.side(fused, False)}
            errors = {"tra": data.error(fused, False)}
            what, note = f"{length} keys, width {width}", graphed(bench, data.words())
            bench.compare("decode", what, replayed(bench, sides), errors, note)


def cpu(bench: Bench) -> None:
    """Blocks of plain torch against the reference, on the CPU."""
    small, both = bench.on_cpu(), {"eager": eager, "tra": fused}
    for length in (4096, 8192) if bench.repeats > 2 else (256,):
        data = Inputs.draw(small, (1, 2, length, 64))
        sides = {name: data.side(attend, True) for name, attend in both.items()}
        _memory(small, f"cpu, n {length}, width 64", sides)
        errors = data.errors(True, both)
        small.compare("cpu", f"n {length}, width 64, fwd+bwd", sides, errors, data.words())


def against_libraries(bench: Bench) -> None:
    """FoX of flash-linear-attention and AdaSplash, at n 8192."""
    from outlast.bench.tra_beside import beside

    beside(bench)


def with_trained_gates(bench: Bench) -> None:
    """Stopping early with the gates of a trained model, the run of `--run`."""
    from outlast.bench.tra_beside import trained

    trained(bench)


def prepare(bench: Bench, sections: Sequence[str]) -> None:
    """Compile what the sections will use, side by side."""
    wide = {"forward", "backward", "decode"} & set(sections)
    jobs = [(attend, width) for width in (WIDTHS if wide else WIDTHS[:1]) for attend in OURS[:2]]
    if {"early", "trained"} & set(sections):
        jobs.append((OURS[2], WIDTHS[0]))
    side_by_side(_compile, jobs, max(1.0, bench.left() / 3))


def _compile(attend: Callable[..., Tensor], width: int) -> None:
    small = Bench(torch.device("cuda"), 1.0)
    Inputs.draw(small, (BATCH, HEADS, 256, width)).side(attend, True)()
    Inputs.draw(small, (BATCH, HEADS, 2048, width), queries=1).side(attend, False)()


OURS = (fused, fused_online, fused_early)
SECTIONS: dict[str, Callable[[Bench], None]] = {
    "forward": forward,
    "backward": backward,
    "early": early,
    "short": short,
    "decode": decode,
    "growth": growth,
    "memory": memory,
    "peers": against_libraries,
    "eager": against_eager,
    "compiled": against_compiled,
    "trained": with_trained_gates,
    "cpu": cpu,
}
#: those that need no CUDA device
ON_CPU = ("cpu", "trained")


def default(device: torch.device) -> tuple[str, ...]:
    """What is run if nothing is asked for."""
    asked_for = ("compiled", "trained", "cpu")
    return tuple(s for s in SECTIONS if s not in asked_for) if device.type == "cuda" else ("cpu",)
