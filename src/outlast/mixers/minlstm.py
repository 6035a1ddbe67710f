"""`minlstm`: an LSTM whose gates see the input alone (Feng et al., arXiv 2410.01201).

::

    f, i = sigmoid(W_fi x)
    h'   = f / (f + i) * h + i / (f + i) * g(W x)

The state enters nowhere but in the last line, so all tokens are computed at once. Its decays are
between 0 and 1, so it cannot track states such as parity.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from outlast.kernels.linear_recurrence import linear_scan
from outlast.kernels.linear_recurrence.chunks import at_least_single
from outlast.mixers.base import Linear, Mixer
from outlast.registry import mixers


@mixers.register("minlstm")
class MinLSTM(Mixer):
    """Minimal LSTM: gates that see the input alone, all tokens at once.

    Args:
        positive: Whether new values are made positive, as in the paper's version in logarithms.
    """

    pathway = "recurrent"

    def __init__(self, width: int, positive: bool = True) -> None:
        super().__init__()
        self.width, self.positive = width, positive
        self.input = Linear(width, 3 * width)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        forget, write, value = at_least_single(self.input(x)).chunk(3, -1)
        if state is None:
            state = value.new_zeros(x.shape[0], self.width)
        # f / (f + i) = sigmoid(log f - log i)
        kept = (F.logsigmoid(forget) - F.logsigmoid(write)).sigmoid()
        if self.positive:
            value = F.relu(value) + (-F.relu(-value)).sigmoid()  # value + 0.5, or its sigmoid
        h = linear_scan(kept, (1 - kept) * value, state)
        return h.to(x.dtype), h[:, -1]
