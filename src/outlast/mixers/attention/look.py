"""Attention of one block of queries, in the two forms that blocks are computed in."""

from __future__ import annotations

from functools import partial

from torch import nn

from outlast.kernels.attention import attend
from outlast.mixers.attention import pure
from outlast.mixers.attention.schemes.base import Scheme
from outlast.mixers.attention.weights.base import Weights
from outlast.mixers.randomness import drop


class Look(nn.Module):
    """Attention of one block of queries. With a `key` a share of the logits is dropped."""

    def __init__(self, scheme: Scheme, weights: Weights, dropout: float = 0.0) -> None:
        super().__init__()
        self.scheme, self.weights, self.dropout = scheme, weights, dropout

    def forward(self, inputs: pure.Inputs) -> pure.Output:
        """The output of the queries (b, h, tq, dv), and the weights' carry after them."""
        keys, carry, features, q, k, v, key = inputs
        queries, first = keys[-q.shape[-2] :], k.shape[-2] - q.shape[-2]
        change = partial(drop, share=self.dropout, key=key, first=first)
        allowed = queries[:, None] >= keys
        weighed = self.scheme.weigh(q, k, features, queries, allowed, keys, change)
        if weighed is None:
            scores = change(self.scheme.scores(q, k, features, queries, keys))
            masked = scores.masked_fill(~allowed, float("-inf"))
            weighed, carry = self.weights.normalise(masked, carry)
        return weighed @ v, carry


class Fused(nn.Module):
    """The same for softmax weights and a bias of positions: torch's fused attention."""

    def __init__(self, scheme: Scheme) -> None:
        super().__init__()
        self.scheme = scheme

    def forward(self, inputs: pure.Inputs) -> pure.Output:
        """As `Look.forward`; nothing is dropped."""
        keys, q = inputs.positions, inputs.q
        bias = self.scheme.bias(keys[-q.shape[-2] :], keys)
        return attend(q, inputs.k, inputs.v, bias), inputs.carry
