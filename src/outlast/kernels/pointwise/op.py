"""Bias and GELU in one pass, as a torch op: fake, autograd and vmap rules around the back ends.

A stack of seeds has a bias for each, which torch adds in passes of its own; here it joins the
GELU, and its gradient is summed up while the GELU's is written.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from outlast.kernels.choosing import can_fuse
from outlast.kernels.folding import folded
from outlast.kernels.pointwise import reference

_library = torch.library.Library("outlast", "FRAGMENT")
_library.define("bias_gelu(Tensor z, Tensor bias) -> Tensor")
_library.define("bias_gelu_backward(Tensor dy, Tensor z, Tensor bias) -> (Tensor, Tensor)")


def back_end(z: Tensor, bias: Tensor) -> ModuleType:
    """The module to run: the fused kernel where it can, else the reference."""
    if can_fuse(z, bias):
        from outlast.kernels.pointwise import triton

        return triton
    return reference


def fused(z: Tensor, bias: Tensor) -> bool:
    """Whether `bias_gelu` is one pass here; where it is not, torch's own operations do better."""
    return back_end(z, bias) is not reference


def bias_gelu(z: Tensor, bias: Tensor) -> Tensor:
    """gelu(z + bias) of z (..., d) and bias (d), in the type of z."""
    rows = z.reshape(1, -1, z.shape[-1])
    out: Tensor = torch.ops.outlast.bias_gelu(rows, bias.unsqueeze(0))
    return out.reshape(z.shape)


def _bias_gelu(z: Tensor, bias: Tensor) -> Tensor:
    found: Tensor = back_end(z, bias).forward(z, bias)
    return found


def _bias_gelu_backward(dy: Tensor, z: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = back_end(z, bias).backward(dy, z, bias)
    return found


@torch.library.register_fake("outlast::bias_gelu", lib=_library)
def _(z: Tensor, bias: Tensor) -> Tensor:
    return z.new_empty(z.shape)


@torch.library.register_fake("outlast::bias_gelu_backward", lib=_library)
def _(dy: Tensor, z: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return z.new_empty(z.shape), bias.new_empty(bias.shape)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.ops.outlast.bias_gelu_backward(dy, *ctx.saved_tensors))


def _refuse(ctx: Any, *_: Tensor) -> tuple[Tensor, ...]:
    raise NotImplementedError("bias_gelu has first derivatives only; use the CPU for more")


_library.impl("bias_gelu", _bias_gelu, "CompositeExplicitAutograd")
_library.impl("bias_gelu_backward", _bias_gelu_backward, "CompositeExplicitAutograd")
torch.library.register_autograd(
    "outlast::bias_gelu", _differentiate, setup_context=_save, lib=_library
)
torch.library.register_autograd("outlast::bias_gelu_backward", _refuse, lib=_library)
for _name in ("bias_gelu", "bias_gelu_backward"):
    torch.library.register_vmap(
        f"outlast::{_name}", folded(getattr(torch.ops.outlast, _name)), lib=_library
    )
