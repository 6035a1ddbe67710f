"""What every fused kernel says of second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def first_only(what: str, more: str = "use the CPU for more") -> Callable[..., NoReturn]:
    """The derivative of a backward op that has none: an error instead of a wrong result."""

    def refuse(ctx: Any, *_: Any) -> NoReturn:
        raise NotImplementedError(f"{what} first derivatives only; {more}")

    return refuse
