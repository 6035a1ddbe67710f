"""`sink`: a softmax that may give its weight to nobody.

w_j = exp(s_j) / (exp(b) + sum_l exp(s_l)), with b learned for each head, 0 at the start (a
learned sink, as in gpt-oss; cf. 2309.17453 on attention sinks). `sink(learned=false)` leaves b at
0: "softmax off by one" (Miller, "Attention is off by one", 2023).

Path: a block of queries at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outlast.mixers.attention.weights.base import Weights
from outlast.registry import weightings


@weightings.register("sink")
class Sink(Weights):
    """Softmax with a sink: one more score, learned, that has no value.

    Args:
        learned: Whether the score of the sink is learned for each head; else it is 0.
    """

    sink: Tensor

    def __init__(self, width: int, heads: int, learned: bool = True) -> None:
        super().__init__(width, heads)
        if learned:
            self.sink = nn.Parameter(torch.zeros(heads))  # a vector: not decayed
        else:
            self.register_buffer("sink", torch.zeros(heads), persistent=False)

    def normalise(self, scores: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        sink = self.sink.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1], carry
