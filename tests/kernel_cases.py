"""Inputs for the kernels, and a comparison that says what differs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def lstm_inputs(steps: int, rows: int, width: int, *lead: int, seed: int = 0) -> list[Tensor]:
    """projected, bias, weight, h0, c0 of the LSTM, with leading axes such as the seeds'."""
    return [
        draw(*lead, rows, steps, 4 * width, seed=seed + 1),
        draw(*lead, 4 * width, seed=seed + 5),
        draw(*lead, 4 * width, width, seed=seed + 2) * width**-0.5,
        draw(*lead, rows, width, seed=seed + 3),
        draw(*lead, rows, width, seed=seed + 4),
    ]


def same(actual: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float = 1e-10) -> None:
    for index, (one, two) in enumerate(zip(actual, wanted, strict=True)):
        torch.testing.assert_close(
            one.to(two.dtype),
            two,
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text, index=index: f"number {index}: {text}",
        )


def near(actual: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float) -> None:
    """Each within `tolerance` of the largest number wanted: for products of many terms."""
    for index, (one, two) in enumerate(zip(actual, wanted, strict=True)):
        error = (one.cpu().to(two.dtype) - two).abs().max() / two.abs().max().clamp_min(1e-30)
        assert error <= tolerance, f"number {index}: off by {error:.1e} of the largest"


def beside_others(rows: Tensor, beside: int = 13) -> Tensor:
    """The same numbers as a view of a wider table, as a stack of seeds holds them."""
    table = rows.new_full((len(rows), beside + rows[0].numel() + beside), torch.nan)
    view = table[:, beside:-beside].unflatten(1, rows.shape[1:])
    return view.copy_(rows)


def turned(tensor: Tensor) -> Tensor:
    """The same numbers with the second axis inside the third in memory."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def cut(tensor: Tensor) -> Tensor:
    """The same numbers as the first columns of a wider table, whose other ones are never read."""
    table = tensor.new_full((*tensor.shape[:-1], tensor.shape[-1] + 5), torch.nan)
    return table[..., : tensor.shape[-1]].copy_(tensor)
