"""`lstm`: long short-term memory (Hochreiter & Schmidhuber, 1997), one layer, any width.

The recurrent pathway of the hybrids. The initialisation decides whether a state-tracking task is
learned at all, and which one is best depends on the task (see docs/findings), so it is an
argument::

    lstm                                         as torch.nn.LSTM: everything U(±1/√width)
    lstm(init=orthogonal, forget_bias=1)         orthogonal recurrent blocks, gates that remember
    lstm(forget_bias=3, input_bias=-3)           gates that remember and let little in

The last one is the chrono initialisation of Tallec and Ollivier (arXiv 1804.11188) with one span of
time for all units. Theirs draws the spans.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from outlast.kernels.lstm import lstm_layer
from outlast.mixers.base import Linear, Mixer
from outlast.registry import mixers

LSTMState = tuple[Tensor, Tensor]


@mixers.register("lstm")
class LSTM(Mixer):
    """Long short-term memory: a gated recurrence that can count and track state.

    Args:
        init: How the weights start: as in torch, or with orthogonal recurrent blocks.
        forget_bias: The bias of the forget gate at the start; `none` leaves it as drawn.
        input_bias: The same of the input gate.
    """

    pathway = "recurrent"
    #: for analyses: whether passes without gradients on a CPU take torch's own layer. It is about
    #: twice as fast there as the loop that trains, and rounds differently
    prefers_torch = False

    def __init__(
        self,
        width: int,
        init: Literal["default", "orthogonal"] = "default",
        forget_bias: float | None = None,
        input_bias: float | None = None,
    ) -> None:
        super().__init__()
        self.width = width
        self.input = Linear(width, 4 * width)
        self.weight = nn.Parameter(torch.empty(4 * width, width))
        self.bias = nn.Parameter(torch.empty(4 * width))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)
        if init == "orthogonal":
            for block in self.weight.chunk(4):
                nn.init.orthogonal_(block)
        with torch.no_grad():
            for gate, start in enumerate((input_bias, forget_bias)):
                if start is not None:
                    self.input.bias.chunk(4)[gate].fill_(start)
                    self.bias.chunk(4)[gate].zero_()

    def forward(self, x: Tensor, state: LSTMState | None = None) -> tuple[Tensor, LSTMState]:
        if state is None:
            start = self.weight.new_zeros(x.shape[0], self.width)
            state = (start, start)
        if self.prefers_torch and x.device.type == "cpu" and not torch.is_grad_enabled():
            return self._by_torch(x, state)
        bias = self.input.bias + self.bias
        hidden, h, c = lstm_layer(x, self.input.weight, bias, self.weight, *state)
        return hidden, (h, c)

    def _by_torch(self, x: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """`forward` by the layer of torch."""
        before = tuple(each[None] for each in state)
        weights = [self.input.weight, self.weight, self.input.bias, self.bias]
        hidden, h, c = torch.lstm(
            x,
            before,
            weights,
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=False,
            bidirectional=False,
            batch_first=True,
        )
        return hidden, (h[0], c[0])
