"""What the tests of training share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import outlast.train.memory as memory
import outlast.train.waves as waves


@pytest.fixture
def set_free(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how many bytes of memory are free."""

    def set_free(size: float) -> None:
        for module in (memory, waves):
            monkeypatch.setattr(module, "free_memory", lambda _: size)

    return set_free
