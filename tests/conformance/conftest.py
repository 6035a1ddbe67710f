"""vmap without its slow way out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def no_vmap_fallback() -> Iterator[None]:
    """Makes an operation that vmap would run row by row an error rather than a warning."""
    functorch = torch._C._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    yield
    functorch._set_vmap_fallback_enabled(before)
