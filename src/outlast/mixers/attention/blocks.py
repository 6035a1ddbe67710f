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

from typing import Any

import torch
from torch import Tensor, nn

from outlast.mixers.attention import compiled, pure
from outlast.mixers.attention.look import Fused, HookedLook, Look

#: how many scores (of one seed) may be held at once
BUDGET = 2**24


def in_blocks(
    look: Look | Fused | HookedLook, inputs: pure.Inputs, scores_a_row: int
) -> pure.Output:
    """All queries, as many at a time as the budget allows."""
    positions, carry, features, q, k, v, key, window = inputs
    queries, keys = q.shape[-2], k.shape[-2]
    rows = max(1, BUDGET // scores_a_row)
    numbers = queries * scores_a_row
    # dropout goes by the place in the whole batch, so the batch cannot be split; behind a cache the
    # number of keys is new at each call, and so would be the program
    if (
        isinstance(look, Look)
        and queries == keys
        and compiled.pays(q, numbers, whole=key is not None)
    ):
        return compiled.attend(look, inputs, numbers)
    if queries <= rows:
        return look(inputs)  # type: ignore[no-any-return]
    outputs = []
    for start in range(0, queries, rows):
        end = min(start + rows, queries)
        seen = keys - queries + end
        block = pure.Inputs(
            positions[:seen],
            carry,
            None if features is None else features[..., :seen, :],
            q[..., start:end, :],
            k[..., :seen, :],
            v[..., :seen, :],
            key,
            window,
        )
        y, carry = _recomputed(look, block)
        outputs.append(y)
    return torch.cat(outputs, -2), carry


def _recomputed(look: nn.Module, block: pure.Inputs) -> pure.Output:
    """`look`, keeping only its inputs. Weights are inputs too, so that seeds may be stacked."""
    if not torch.is_grad_enabled():
        return look(block)  # type: ignore[no-any-return]
    run = pure.function(look, [t is not None for t in block])
    tensors = (*pure.weights_of(look).values(), *(t for t in block if t is not None))
    return pure.as_output(_Recomputed.apply(run, *tensors))  # type: ignore[no-untyped-call]


class _Recomputed(torch.autograd.Function):
    """A pure function of tensors that is run again, and differentiated, in the backward pass.

    `torch.utils.checkpoint` does the same, but not inside `torch.func.vmap`.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(run: pure.PureLook, *inputs: Tensor) -> Any:
        return run(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.run = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        saved = ctx.saved_tensors
        return None, *pure.all_gradients(pure.float_gradients(ctx.run, grads, saved), saved)
