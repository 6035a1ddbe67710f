"""Small inputs in float64, and comparisons of outputs and gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def randn(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers of a shape, the same every time."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def close(
    one: Tensor, two: Tensor, tolerance: float = 1e-9, atol: float | None = None, what: str = ""
) -> None:
    """Refuse two tensors that are not equal to rounding, or not of one dtype.

    `what` says what an item did if they differ.
    """
    torch.testing.assert_close(
        one,
        two,
        rtol=tolerance,
        atol=tolerance if atol is None else atol,
        msg=(lambda text: f"{what}. {text}") if what else None,
    )


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
    """Refuse outputs (seeds, ...) and gradients that are not those of each seed alone."""
    upstream = randn(*together.shape, seed=3)
    names, weights = list(stacked), list(stacked.values())
    # raises if a weight takes no part
    gradients = torch.autograd.grad((together * upstream).sum(), weights) if weights else ()
    for seed, copy in enumerate(copies):
        output = alone(seed)
        close(together[seed], output, atol=1e-11, what=f"seed {seed} among others is another")
        parameters = list(copy.parameters())
        if not parameters:
            continue
        wanted = torch.autograd.grad((output * upstream[seed]).sum(), parameters)
        for name, gradient, want in zip(names, gradients, wanted, strict=True):
            what = f"the gradient of {name} of seed {seed} among others is another"
            close(gradient[seed], want, atol=1e-11, what=what)


@contextmanager
def strict_vmap() -> Iterator[None]:
    """An operation that vmap would run row by row is an error, and so is every warning."""
    functorch: Any = torch._C._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        functorch._set_vmap_fallback_enabled(before)


@contextmanager
def untouched_random_state() -> Iterator[None]:
    """Refuse code that draws from torch's global generator."""
    before = torch.get_rng_state()
    yield
    if not torch.equal(before, torch.get_rng_state()):
        raise AssertionError("it draws from torch's global generator")
