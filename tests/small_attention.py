"""Small layers in float64 for tests of mixers, and their comparison with each other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outlast.mixers.attention import Attention
from outlast.testing.compare import check_each_seed_alone, close, randn, stacked_weights
from outlast.testing.subjects import Subject

__all__ = ["check_each_seed_alone", "close", "randn", "stacked_weights"]

WIDTH, ROWS, TOKENS = 8, 3, 7


def make(spec: str, seed: int = 0) -> Attention:
    """The layer of a spec, with weights that are not as they start: a 0 hides what it does."""
    layer = Subject(spec, WIDTH).make(seed)
    assert isinstance(layer, Attention)
    return layer


def draw(tokens: int = TOKENS, rows: int = ROWS, seed: int = 0) -> Tensor:
    """An input of a layer."""
    return randn(rows, tokens, WIDTH, seed=seed)


def close_values(one: Any, two: Any, tolerance: float = 1e-9) -> None:
    """Equal to rounding: numbers, lists of numbers or tensors of any dtype."""
    one, two = (torch.as_tensor(t, dtype=torch.float64) for t in (one, two))
    close(one, two, tolerance)
