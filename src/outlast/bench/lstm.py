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

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from outlast.bench.graphs import captured
from outlast.bench.timing import Bench, Row, Side, counted, not_run
from outlast.bench.warm import side_by_side
from outlast.kernels.lstm.layer import SWITCH, cudnn_wins
from outlast.kernels.lstm.op import form
from outlast.machine import precision
from outlast.mixers.lstm import LSTM

WIDTHS, LENGTHS, BATCHES = (64, 128), (64, 256, 1024), (16, 128)
#: a narrow layer and the widest that is fused, at a few sizes
EDGES = (16, 256)
SEEDS = 32


@dataclass
class Case:
    """Layers of several seeds, their inputs, and the gradient of their outputs.

    x, above (seeds, batch, steps, width); weights w_in, w (seeds, 4 width, width) and the biases
    b_in, b (seeds, 4 width), drawn as torch draws them.
    """

    x: Tensor
    above: Tensor
    weights: list[Tensor]

    @classmethod
    def draw(cls, device: torch.device, width: int, steps: int, batch: int, seeds: int) -> Case:
        """Random ones."""
        chance = torch.Generator(device).manual_seed(0)

        def normal(*size: int) -> Tensor:
            return torch.randn(size, device=device, generator=chance)

        x, above = normal(seeds, batch, steps, width), normal(seeds, batch, steps, width)
        bound = width**-0.5
        shapes = ((4 * width, width), (4 * width, width), (4 * width,), (4 * width,))
        weights = [
            (2 * torch.rand(seeds, *shape, device=device, generator=chance) - 1) * bound
            for shape in shapes
        ]
        return cls(x, above, weights)

    def torchs(self, dtype: torch.dtype, seeds: slice = slice(None)) -> Side:
        """`nn.LSTM` in a loop over the seeds; gives output and gradients of each."""
        layers = []
        for row in range(len(self.x))[seeds]:
            width = self.x.shape[-1]
            layer = nn.LSTM(width, width, batch_first=True, device=self.x.device, dtype=dtype)
            with torch.no_grad():
                for own, given in zip(layer.parameters(), self.weights, strict=True):
                    own.copy_(given[row])
            x = self.x[row].detach().to(dtype).requires_grad_()
            layers.append((layer, x, self.above[row].to(dtype)))

        def side() -> list[tuple[Tensor, ...]]:
            found = []
            for layer, x, above in layers:
                out = layer(x)[0]
                leaves = [x, *layer.parameters()]
                found.append((out, *torch.autograd.grad(out, leaves, above)))
            return found

        return side

    def by_cudnn(self) -> bool:
        """Whether our layer takes cuDNN: for one seed, where it wins."""
        return len(self.x) == 1 and cudnn_wins(self.x[0], self.weights[1][0])

    def ours(self, half: bool = False, fused: bool = False) -> Side:
        """Our layer, all seeds in one call; `half` is as under bfloat16's autocast in training.

        `fused`: by our kernel, also where cuDNN wins.
        """
        layer = LSTM(self.x.shape[-1]).to(self.x.device)
        names = ("input.weight", "weight", "input.bias", "bias")
        dtype = torch.bfloat16 if half else self.x.dtype
        x, above = self.x.detach().to(dtype).requires_grad_(), self.above.to(dtype)
        leaves = [w.clone().requires_grad_() for w in self.weights]
        own = dict(zip(names, leaves, strict=True))

        def one(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(layer, weights, (x,))[0]

        def side() -> list[tuple[Tensor, ...]]:
            autocast = torch.autocast(self.x.device.type, torch.bfloat16, enabled=half)
            with autocast, _by_our_kernel() if fused else nullcontext():
                out = vmap(one)(own, x)
            found = torch.autograd.grad(out, [x, *leaves], above)
            return list(zip(out, *found, strict=True))

        return side

    @cached_property
    def truth(self) -> tuple[Tensor, ...]:
        """Output and gradients of the first seed in float64."""
        (found,) = self.torchs(torch.float64, slice(1))()
        return found

    def error(self, side: Side) -> float:
        """How far the first seed is from the truth."""
        pairs = zip(side()[0], self.truth, strict=True)
        return max(((a.double() - b).norm() / b.norm()).item() for a, b in pairs)


@contextmanager
def _by_our_kernel() -> Iterator[None]:
    """Whatever the layer would choose."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "fused"
    try:
        yield
    finally:
        del os.environ[SWITCH]
        if before is not None:
            os.environ[SWITCH] = before


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
    note = ("graphed, " if graphed else "plain, ") + counted(size[-1])
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
    """Compile what the sections will use, side by side."""
    jobs = [(width, half) for width in (*WIDTHS, *EDGES) for half in (False, True)]
    side_by_side(_compile, jobs, max(1.0, bench.left() / 3))


def _compile(width: int, half: bool) -> None:
    device = torch.device("cuda")
    with precision("auto", device):
        Case.draw(device, width, 2, 16, 2).ours(half)()


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "one": one,
    "plain": plain,
    "many": many,
    "cpu": cpu,
}


def default(device: torch.device) -> tuple[str, ...]:
    """What is run if nothing is asked for."""
    return tuple(SECTIONS)[:-1] if device.type == "cuda" else ("cpu",)
