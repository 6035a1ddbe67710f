"""Small layers in float64 for tests of mixers, and their comparison with each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from outlast.mixers.attention import Attention
from outlast.registry import mixers

WIDTH, ROWS, TOKENS = 8, 3, 7


def make(spec: str, seed: int = 0) -> Attention:
    """The layer of a spec, with weights that are not as they start: a 0 hides what it does."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = mixers.build(spec, width=WIDTH)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return layer.double()


def randn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def draw(tokens: int = TOKENS, rows: int = ROWS, seed: int = 0) -> Tensor:
    """An input of a layer."""
    return randn(rows, tokens, WIDTH, seed=seed)


def close(one: Tensor, two: Tensor, tolerance: float = 1e-9, atol: float | None = None) -> None:
    """Equal to rounding, and of one dtype."""
    torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance if atol is None else atol)


def close_values(one: Any, two: Any, tolerance: float = 1e-9) -> None:
    """Equal to rounding: numbers, lists of numbers or tensors of any dtype."""
    one, two = (torch.as_tensor(t, dtype=torch.float64) for t in (one, two))
    close(one, two, tolerance)


def stacked_weights(copies: Sequence[nn.Module]) -> dict[str, Tensor]:
    """The weights of several seeds, each name one tensor, for vmap and `functional_call`."""
    rows = [dict(copy.named_parameters()) for copy in copies]
    return {n: torch.stack([r[n].detach() for r in rows]).requires_grad_() for n in rows[0]}


def check_each_seed_alone(
    together: Tensor,
    stacked: dict[str, Tensor],
    copies: Sequence[nn.Module],
    alone: Callable[[int], Tensor],
) -> None:
    """Outputs (seeds, ...) and gradients of stacked seeds are those of each seed alone."""
    upstream = randn(*together.shape, seed=3)
    # raises if a weight takes no part
    gradients = torch.autograd.grad((together * upstream).sum(), list(stacked.values()))
    for seed, copy in enumerate(copies):
        output = alone(seed)
        close(together[seed], output, atol=1e-11)
        wanted = torch.autograd.grad((output * upstream[seed]).sum(), list(copy.parameters()))
        for gradient, want in zip(gradients, wanted, strict=True):
            close(gradient[seed], want, atol=1e-11)
