"""Errors for derivatives that the fused kernels do not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C._functorch import TransformType
from torch.autograd import forward_ad


def first_only(subject: str, instead: str = "use the CPU for more") -> Callable[..., NoReturn]:
    """The `backward` of a backward op: an error instead of a wrong second derivative.

    Args:
        subject: What has no second derivative, with its verb: "the norm kernel has".
        instead: What the caller can do.
    """

    def refuse(ctx: Any, *_: Any) -> NoReturn:
        raise NotImplementedError(f"{subject} first derivatives only; {instead}")

    return refuse


def backward_only(subject: str, instead: str, tensors: tuple[Tensor, ...]) -> None:
    """Raise an error in forward mode and below `torch.func.grad` and its kin.

    There torch would take the derivative of an op for 0, or fail with an unclear message. vmap
    alone is allowed.
    """
    if torch.compiler.is_compiling():
        return
    levels = torch._C._functorch.get_interpreter_stack() or ()
    unsupported = any(level.key() in (TransformType.Grad, TransformType.Jvp) for level in levels)
    # whoever asks in forward mode has opened a level for it
    if forward_ad._current_level >= 0:
        unsupported |= any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)
    if unsupported:
        raise NotImplementedError(
            f"{subject} derivatives by backward and torch.autograd.grad alone; {instead}"
        )
