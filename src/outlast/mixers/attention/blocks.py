"""Attention a block of queries at a time, so that no n x n table outlives a block.

This is the generic path of every scheme and of all weights without a fused kernel: scores, then
weights, then values, in at least float32. If one block holds all queries, this is plain autograd.
If there are several, only a block's inputs are kept, and the backward pass computes the block
again. So the extra memory is that of one block, about `BUDGET` numbers a table, at any length.
Large blocks are compiled (`compiled`).

A bias of positions alone goes through torch's fused attention with a block of its table. We do not
use FlexAttention: it cannot run under the vmap over seeds, and it compiles itself for every shape.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from outlast.kernels.attention import attend
from outlast.mixers.attention import compiled
from outlast.mixers.attention.pure import (
    Output,
    PureLook,
    all_gradients,
    as_output,
    float_gradients,
    pure,
    weights_of,
)
from outlast.mixers.attention.schemes.base import Scheme
from outlast.mixers.attention.weights.base import Weights
from outlast.mixers.randomness import drop

#: how many scores (of one seed) may be held at once
BUDGET = 2**24


class Look(nn.Module):
    """One block: q (b, h, tq, d) over k, v (b, h, tk, d), the last query on the last key.

    `positions` (tk,) are those of the keys. With a `key` a share of the logits is dropped.
    """

    def __init__(self, scheme: Scheme, weights: Weights, dropout: float = 0.0) -> None:
        super().__init__()
        self.scheme, self.weights, self.dropout = scheme, weights, dropout

    def forward(
        self,
        positions: Tensor,
        carry: Tensor | None,
        token_features: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key: Tensor | None = None,
    ) -> Output:
        """The output of the queries (b, h, tq, dv), and the weights' carry after them."""
        queries, first = positions[-q.shape[-2] :], k.shape[-2] - q.shape[-2]
        change = partial(drop, share=self.dropout, key=key, first=first)
        allowed = queries[:, None] >= positions
        weighed = self.scheme.weigh(q, k, token_features, queries, allowed, positions, change)
        if weighed is None:
            scores = change(self.scheme.scores(q, k, token_features, queries, positions))
            masked = scores.masked_fill(~allowed, float("-inf"))
            weighed, carry = self.weights.normalise(masked, carry)
        return weighed @ v, carry


class Fused(nn.Module):
    """The same for softmax weights and a bias of positions: torch's fused attention."""

    def __init__(self, scheme: Scheme) -> None:
        super().__init__()
        self.scheme = scheme

    def forward(
        self,
        positions: Tensor,
        carry: Tensor | None,
        token_features: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key: None = None,
    ) -> Output:
        """As `Look.forward`; nothing is dropped."""
        return attend(q, k, v, self.scheme.bias(positions[-q.shape[-2] :], positions)), carry


def in_blocks(
    look: Look | Fused,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    token_features: Tensor | None,
    carry: Tensor | None,
    scores_a_row: int,
    key: Tensor | None = None,
) -> Output:
    """All queries, as many at a time as the budget allows; `positions` are those of the keys."""
    queries, keys = q.shape[-2], k.shape[-2]
    rows = max(1, BUDGET // scores_a_row)
    numbers = queries * scores_a_row
    # dropout goes by the place in the whole batch, so the batch cannot be split
    if isinstance(look, Look) and compiled.pays(q, numbers, whole=key is not None):
        return compiled.attend(look, numbers, positions, carry, token_features, q, k, v, key)
    if queries <= rows:
        return look(positions, carry, token_features, q, k, v, key)  # type: ignore[no-any-return]
    outputs = []
    for start in range(0, queries, rows):
        end = min(start + rows, queries)
        seen = keys - queries + end
        y, carry = _recomputed(
            look,
            positions[:seen],
            carry,
            None if token_features is None else token_features[..., :seen, :],
            q[..., start:end, :],
            k[..., :seen, :],
            v[..., :seen, :],
            key,
        )
        outputs.append(y)
    return torch.cat(outputs, -2), carry


def _recomputed(look: nn.Module, *arguments: Tensor | None) -> Output:
    """`look`, keeping only its inputs. Weights are inputs too, so that seeds may be stacked."""
    if not torch.is_grad_enabled():
        return look(*arguments)  # type: ignore[no-any-return]
    weights = weights_of(look)
    run = pure(look, list(weights), [t is not None for t in arguments])
    inputs = [t for t in arguments if t is not None]
    return as_output(_Recomputed.apply(run, *weights.values(), *inputs))  # type: ignore[no-untyped-call]


class _Recomputed(torch.autograd.Function):
    """A pure function of tensors that is run again, and differentiated, in the backward pass.

    `torch.utils.checkpoint` does the same, but not inside `torch.func.vmap`.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(run: PureLook, *inputs: Tensor) -> Any:
        return run(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.run = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        saved = ctx.saved_tensors
        return None, *all_gradients(float_gradients(ctx.run, grads, saved), saved)
