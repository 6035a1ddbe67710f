"""What the tests against other libraries share: inputs, and comparisons with gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.testing.compare import randn

#: more than two chunks of ours and of theirs, and no whole number of either
ROWS, HEADS, TOKENS, KEYS, VALUES = 2, 4, 150, 8, 6


def leaf(*shape: int, seed: int) -> Tensor:
    """Normal numbers in float32, as most oracles compute in no other type."""
    return randn(*shape, seed=seed).float().requires_grad_()


def recurrence_inputs() -> dict[str, Tensor]:
    """Inputs of a recurrence, all leaves: keys of length 1, betas between 0 and 2."""
    k = torch.nn.functional.normalize(randn(ROWS, HEADS, TOKENS, KEYS, seed=1), dim=-1)
    beta = 2 * randn(ROWS, HEADS, TOKENS, 1, seed=3).sigmoid()
    log_decay = -randn(ROWS, HEADS, TOKENS, 1, seed=4).square()
    return {
        "q": leaf(ROWS, HEADS, TOKENS, KEYS, seed=0),
        "k": k.float().requires_grad_(),
        "v": leaf(ROWS, HEADS, TOKENS, VALUES, seed=2),
        "beta": beta.float().requires_grad_(),
        "log_decay": log_decay.float().requires_grad_(),
        "state": leaf(ROWS, HEADS, KEYS, VALUES, seed=5),
    }


def swapped(x: Tensor) -> Tensor:
    """[batch, heads, tokens, ...] as [batch, tokens, heads, ...], or the other way."""
    return x.transpose(1, 2)


def close(ours: Tensor, theirs: Tensor, scale: float = 1.0) -> None:
    """Equal up to rounding in float32; `scale` is how large entries may be."""
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-4, atol=1e-5 * scale)


def close_gradients(
    ours: Sequence[Tensor],
    theirs: Sequence[Tensor],
    leaves: Sequence[Tensor],
    their_leaves: Sequence[Tensor] | None = None,
) -> None:
    """Outputs are equal, and so are the gradients of the leaves by all outputs together.

    `their_leaves` are those of the other side, where it has weights of its own.
    """
    for one, two in zip(ours, theirs, strict=True):
        close(one, two)
    upstream = [randn(*y.shape, seed=9).float() for y in ours]
    for one, two in zip(
        torch.autograd.grad(ours, leaves, upstream),
        torch.autograd.grad(theirs, leaves if their_leaves is None else their_leaves, upstream),
        strict=True,
    ):
        assert two.any()
        close(one, two, scale=float(two.abs().max()))
