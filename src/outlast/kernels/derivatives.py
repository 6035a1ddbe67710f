"""What every fused kernel says of derivatives that it does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C._functorch import TransformType
from torch.autograd import forward_ad


def first_only(what: str, more: str = "use the CPU for more") -> Callable[..., NoReturn]:
    """The derivative of a backward op that has none: an error instead of a wrong result."""

    def refuse(ctx: Any, *_: Any) -> NoReturn:
        raise NotImplementedError(f"{what} first derivatives only; {more}")

    return refuse


def backward_only(what: str, more: str, tensors: tuple[Tensor, ...]) -> None:
    """An error where a derivative is asked for that torch would take for 0, or refuse in its words.

    That is in forward mode, and by `torch.func.grad` and its kin; vmap is none of them.
    """
    if torch.compiler.is_compiling():
        return
    levels = torch._C._functorch.get_interpreter_stack() or ()
    asked = any(level.key() in (TransformType.Grad, TransformType.Jvp) for level in levels)
    # whoever asks in forward mode has opened a level for it
    if forward_ad._current_level >= 0:
        asked |= any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)
    if asked:
        raise NotImplementedError(
            f"{what} derivatives by backward and torch.autograd.grad alone; {more}"
        )
