"""The layers that `outlast bench lstm` compares: the same weights in torch's LSTM and in ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from outlast.bench.timing import Side
from outlast.kernels.lstm.layer import SWITCH, cudnn_wins
from outlast.mixers.lstm import LSTM


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
        generator = torch.Generator(device).manual_seed(0)

        def uniform(*shape: int) -> Tensor:
            numbers = torch.rand(seeds, *shape, device=device, generator=generator)
            return (2 * numbers - 1) * width**-0.5

        size = (seeds, batch, steps, width)
        x, above = (torch.randn(size, device=device, generator=generator) for _ in range(2))
        shapes = ((4 * width, width), (4 * width, width), (4 * width,), (4 * width,))
        return cls(x, above, [uniform(*shape) for shape in shapes])

    def torchs(self, dtype: torch.dtype, seeds: slice = slice(None)) -> Side:
        """`nn.LSTM` in a loop over the seeds; gives output and gradients of each."""
        layers = []
        for row in range(len(self.x))[seeds]:
            width = self.x.shape[-1]
            layer = nn.LSTM(width, width, batch_first=True, device=self.x.device, dtype=dtype)
            with torch.no_grad():
                for weight, stacked in zip(layer.parameters(), self.weights, strict=True):
                    weight.copy_(stacked[row])
            x = self.x[row].detach().to(dtype).requires_grad_()
            layers.append((layer, x, self.above[row].to(dtype)))

        def side() -> list[tuple[Tensor, ...]]:
            results = []
            for layer, x, above in layers:
                out = layer(x)[0]
                leaves = [x, *layer.parameters()]
                results.append((out, *torch.autograd.grad(out, leaves, above)))
            return results

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
        parameters = dict(zip(names, leaves, strict=True))

        def one(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(layer, weights, (x,))[0]

        def side() -> list[tuple[Tensor, ...]]:
            autocast = torch.autocast(self.x.device.type, torch.bfloat16, enabled=half)
            with autocast, by_our_kernel() if fused else nullcontext():
                out = vmap(one)(parameters, x)
            gradients = torch.autograd.grad(out, [x, *leaves], above)
            return list(zip(out, *gradients, strict=True))

        return side

    @cached_property
    def truth(self) -> tuple[Tensor, ...]:
        """Output and gradients of the first seed in float64."""
        (results,) = self.torchs(torch.float64, slice(1))()
        return results

    def error(self, side: Side) -> float:
        """How far the first seed is from the truth."""
        pairs = zip(side()[0], self.truth, strict=True)
        return max(((a.double() - b).norm() / b.norm()).item() for a, b in pairs)


@contextmanager
def by_our_kernel() -> Iterator[None]:
    """Use our kernel, whatever the layer would choose."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "fused"
    try:
        yield
    finally:
        del os.environ[SWITCH]
        if before is not None:
            os.environ[SWITCH] = before
