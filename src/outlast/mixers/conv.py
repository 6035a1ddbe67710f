"""`conv`: a short causal convolution, the last few tokens of each channel.

::

    c_t = w_0 * x_t + w_1 * x_{t-1} + ... + b
    y_t = W silu(c_t)

Hybrids of today have one before their recurrence: H3 (arXiv 2212.14052), Mamba (2312.00752), Gated
DeltaNet. Here it is a sublayer of its own, so that attention can see the token before, whatever the
recurrence makes of it. The map W after it is ours.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from outlast.arguments import check_whole
from outlast.mixers.base import Linear, Mixer
from outlast.mixers.heads import convolve
from outlast.registry import mixers


@mixers.register("conv")
class Conv(Mixer):
    """Short causal convolution over the last `kernel` tokens, each channel by itself.

    Args:
        kernel: How many tokens it sees, this one included.
    """

    pathway = "recurrent"
    holds_state = False

    def __init__(self, width: int, kernel: int = 4) -> None:
        super().__init__()
        check_whole("kernel", kernel, 1)
        self.kernel = kernel
        self.weight = nn.Parameter(torch.empty(kernel, width))
        self.bias = nn.Parameter(torch.empty(width))
        self.out = Linear(width, width)
        for parameter in (self.weight, self.bias):
            nn.init.uniform_(parameter, -(kernel**-0.5), kernel**-0.5)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The state is the last `kernel` - 1 tokens, (batch, kernel - 1, width)."""
        if state is None:
            state = x.new_zeros(x.shape[0], self.kernel - 1, x.shape[2])
        total, state = convolve(x, state, self.weight, self.bias)
        return self.out(functional.silu(total).to(x.dtype)), state
