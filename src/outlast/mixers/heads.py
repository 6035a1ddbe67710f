"""What recurrences with heads have in common: their axes, a short convolution, a learned decay."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outlast.arguments import check_whole
from outlast.kernels.linear_recurrence.chunks import at_least_single
from outlast.mixers.base import Linear


def head_width(width: int, heads: int) -> int:
    """The width of a head. Rounded up, so that any number of heads goes with any width."""
    check_whole("heads", heads, 1)
    return -(-width // heads)


def to_heads(x: Tensor, heads: int) -> Tensor:
    """x [batch, tokens, heads * d] as [batch, heads, tokens, d], in float32 at least."""
    return at_least_single(x).unflatten(-1, (heads, -1)).transpose(1, 2)


def from_heads(x: Tensor) -> Tensor:
    """The inverse of `to_heads`."""
    return x.transpose(1, 2).flatten(2)


def unit(x: Tensor) -> Tensor:
    """x over its length, along the last axis."""
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def convolve(
    x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | float
) -> tuple[Tensor, Tensor]:
    """A causal convolution, each channel by itself, and the tokens that later ones will need.

    Args:
        x: [batch, tokens, width].
        state: [batch, kernel - 1, width], the tokens before x.
        weight: [kernel, width], that of the last token first.
        bias: [width].

    Returns:
        [batch, tokens, width] and [batch, kernel - 1, width].
    """
    before, tokens = weight.shape[0] - 1, x.shape[1]
    seen = torch.cat([state.to(x.dtype), x], 1)
    total: Tensor | float = bias
    for back, row in enumerate(weight.unbind(0)):
        total = total + row * seen[:, before - back : before - back + tokens]
    assert isinstance(total, Tensor)
    return total, seen[:, tokens:]


class ShortConv(nn.Module):
    """silu of a causal convolution over the last `kernel` tokens, each channel by itself."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        check_whole("conv", kernel, 1)
        self.weight = nn.Parameter(torch.empty(kernel, width))
        self.bias = nn.Parameter(torch.empty(width))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(kernel**-0.5), kernel**-0.5)

    def start(self, x: Tensor) -> Tensor:
        """The state before the first token of x."""
        return x.new_zeros(x.shape[0], self.weight.shape[0] - 1, x.shape[2])

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y, state = convolve(x, state, self.weight, self.bias)
        return F.silu(y).to(x.dtype), state


class Decay(nn.Module):
    """A step and a decay for each head and token, as in Mamba-2 (arXiv 2405.21060).

    ::

        step      = softplus(W x + b)
        log decay = -exp(A) * step

    At the start steps are between 0.001 and 0.1, and exp(A) is between 1 and 16.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.step = Linear(width, heads)
        self.rate = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        with torch.no_grad():
            step = torch.empty(heads).uniform_(math.log(1e-3), math.log(1e-1)).exp()
            self.step.bias.copy_(step + torch.log(-torch.expm1(-step)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Steps and log decays, each [batch, heads, tokens, 1]."""
        step = F.softplus(to_heads(self.step(x), self.rate.shape[-1]))
        return step, -self.rate.exp()[:, None, None] * step
