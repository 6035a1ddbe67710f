"""Attention a block of queries at a time, so that no n x n table outlives a block.

The generic path of every scheme and of all weights without a fused kernel: scores, then weights,
then values, in at least float32. Where one block holds all queries this is plain autograd. Where
there are several, only a block's inputs are kept and the backward pass computes it again, so the
extra memory is that of one block: about `BUDGET` numbers a table, whatever the length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from outlast.kernels.attention import attend
from outlast.mixers.attention.schemes.base import Scheme
from outlast.mixers.attention.weights.base import Weights

#: how many scores (of one seed) may be held at once
BUDGET = 2**24

Blocked = tuple[Tensor, Tensor | None]


class Look(nn.Module):
    """One block: q (b, h, tq, d) over k, v (b, h, tk, d), the last query on the last key."""

    def __init__(self, scheme: Scheme, weights: Weights) -> None:
        super().__init__()
        self.scheme, self.weights = scheme, weights

    def forward(
        self,
        positions: Tensor,
        carry: Tensor | None,
        marks: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
    ) -> Blocked:
        """What the queries get (b, h, tq, dv), and the weights' carry after them."""
        allowed = positions[:, None] >= torch.arange(k.shape[-2], device=k.device)
        weighed = self.scheme.weigh(q, k, marks, positions, allowed)
        if weighed is None:
            scores = self.scheme.scores(q, k, marks, positions)
            masked = scores.masked_fill(~allowed, float("-inf"))
            weighed, carry = self.weights.normalise(masked, carry)
        return weighed @ v, carry


class Fused(nn.Module):
    """The same where weights are a softmax and position a bias: torch's fused attention."""

    def __init__(self, scheme: Scheme) -> None:
        super().__init__()
        self.scheme = scheme

    def forward(
        self,
        positions: Tensor,
        carry: Tensor | None,
        marks: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
    ) -> Blocked:
        """As `Look.forward`."""
        return attend(q, k, v, self.scheme.bias(positions, k.shape[-2])), carry


def in_blocks(
    look: Look | Fused,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    marks: Tensor | None,
    carry: Tensor | None,
    scores_a_row: int,
) -> Blocked:
    """All queries, as many at a time as the budget allows."""
    queries, keys = q.shape[-2], k.shape[-2]
    rows = max(1, BUDGET // scores_a_row)
    if queries <= rows:
        return look(positions, carry, marks, q, k, v)  # type: ignore[no-any-return]
    parts = []
    for start in range(0, queries, rows):
        end = min(start + rows, queries)
        seen = keys - queries + end
        y, carry = _again_in_backward(
            look,
            positions[start:end],
            carry,
            None if marks is None else marks[..., :seen, :],
            q[..., start:end, :],
            k[..., :seen, :],
            v[..., :seen, :],
        )
        parts.append(y)
    return torch.cat(parts, -2), carry


def _again_in_backward(
    look: nn.Module, positions: Tensor, carry: Tensor | None, marks: Tensor | None, *qkv: Tensor
) -> Blocked:
    """`look`, keeping its inputs alone; weights travel as inputs, so that seeds may be stacked."""
    if not torch.is_grad_enabled():
        return look(positions, carry, marks, *qkv)  # type: ignore[no-any-return]
    own = dict(look.named_parameters())
    optional = [t for t in (carry, marks) if t is not None]

    def run(*tensors: Tensor) -> Any:
        left = list(tensors)
        parameters = {name: left.pop(0) for name in own}
        before = left.pop(0) if carry is not None else None
        noted = left.pop(0) if marks is not None else None
        with torch.autocast(left[0].device.type, enabled=False):
            y, after = functional_call(look, parameters, (positions, before, noted, *left))
        return y if after is None else (y, after)

    found = _Recomputed.apply(run, *own.values(), *optional, *qkv)  # type: ignore[no-untyped-call]
    return found if isinstance(found, tuple) else (found, None)


class _Recomputed(torch.autograd.Function):
    """A pure function of tensors that is run again, and differentiated, in the backward pass.

    `torch.utils.checkpoint` does the same, but not inside `torch.func.vmap`.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(run: Callable[..., Any], *inputs: Tensor) -> Any:
        return run(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.run = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        found: Any = torch.func.vjp(ctx.run, *ctx.saved_tensors)
        output, pull = found
        return None, *pull(grads if isinstance(output, tuple) else grads[0])
