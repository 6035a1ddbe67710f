"""Attention of one block of queries, in the two forms that blocks are computed in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

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
        weights, carry, _ = self.weigh(inputs)
        return weights @ inputs.v, carry

    def weigh(self, inputs: pure.Inputs) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The weights (b, h, tq, tk) of the keys, the carry, and the scores.

        A scheme that makes its own weights has no scores.
        """
        keys, carry, features, q, k, _, key, window = inputs
        queries, first = keys[-q.shape[-2] :], k.shape[-2] - q.shape[-2]
        change = partial(drop, share=self.dropout, key=key, first=first)
        allowed = queries[:, None] >= keys
        if window is not None:
            counted = torch.arange(k.shape[-2], device=k.device)  # positions may have gaps
            allowed = allowed & (counted[first:, None] - counted < window)
        weighed = self.scheme.weigh(q, k, features, queries, allowed, keys, change)
        if weighed is not None:
            return weighed, carry, None
        scores = change(self.scheme.scores(q, k, features, queries, keys))
        masked = scores.masked_fill(~allowed, float("-inf"))
        weighed, carry = self.weights.normalise(masked, carry)
        return weighed, carry, masked


class AttentionBlock(NamedTuple):
    """What a hook sees of a block of queries.

    Args:
        weights: Of the keys so far, (batch, heads, queries, keys).
        scores: What the weights were made of, -inf for keys after the query; None if the scheme
            makes its own weights.
        first: The number of the first query of this block in its sequence.
        inputs: The queries, keys and values.
    """

    weights: Tensor
    scores: Tensor | None
    first: int
    inputs: pure.Inputs


#: sees each block of queries, and may return other weights in place of those it sees
Hook = Callable[[AttentionBlock], Tensor | None]


class Watcher:
    """A hook that needs to see the queries from `first` on alone; the others go without a hook."""

    first: int = 0

    def __call__(self, block: AttentionBlock) -> Tensor | None:
        """As `Hook`."""
        raise NotImplementedError


class Change:
    """A hook that replaces weights, and does so faster for a plain softmax: no table is made."""

    def __call__(self, block: AttentionBlock) -> Tensor:
        """As `Hook`."""
        raise NotImplementedError

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The output (batch, heads, queries, head width), the last query on the last key."""
        raise NotImplementedError


class HookedLook(nn.Module):
    """A look whose weights a hook sees, and may replace."""

    def __init__(self, look: Look, hook: Hook) -> None:
        super().__init__()
        self.look, self.hook = look, hook

    def forward(self, inputs: pure.Inputs) -> pure.Output:
        """As `Look.forward`."""
        weights, carry, scores = self.look.weigh(inputs)
        first = inputs.k.shape[-2] - inputs.q.shape[-2]
        replaced = self.hook(AttentionBlock(weights, scores, first, inputs))
        return (weights if replaced is None else replaced) @ inputs.v, carry


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
