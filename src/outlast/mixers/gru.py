"""`gru`: gated recurrent unit (Cho et al., 2014), with the reset gate behind the product.

::

    r, z = sigmoid(W_rz x + U_rz h)
    n    = tanh(W_n x + r * (U_n h))
    h'   = (1 - z) * n + z * h
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outlast.mixers.base import Linear, Mixer
from outlast.registry import mixers


@mixers.register("gru")
class GRU(Mixer):
    """Gated recurrent unit: two gates, one state; the lighter relative of the LSTM."""

    pathway = "recurrent"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.input = Linear(width, 3 * width)
        self.weight = nn.Parameter(torch.empty(3 * width, width))
        self.bias = nn.Parameter(torch.empty(3 * width))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        projected = self.input(x.transpose(0, 1))
        projected = projected.to(torch.promote_types(projected.dtype, torch.float32))
        h = projected.new_zeros(x.shape[0], self.width) if state is None else state
        outputs = []
        for step in projected.unbind(0):
            recurrent = torch.addmm(self.bias, h, self.weight.mT).to(h.dtype)
            r, z = (step + recurrent)[..., : 2 * self.width].sigmoid().chunk(2, -1)
            n = torch.tanh(step[..., 2 * self.width :] + r * recurrent[..., 2 * self.width :])
            h = torch.lerp(n, h, z)
            outputs.append(h)
        return torch.stack(outputs, 1).to(x.dtype), h
