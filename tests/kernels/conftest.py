"""The precision of float32 matmuls, set for a test and put back after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(params=["high"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """tf32, or what a test asks for by `indirect`; Triton's interpreter rounds nothing."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def tf32(precision: str) -> None:
    """Matmuls in tf32, as in training."""
