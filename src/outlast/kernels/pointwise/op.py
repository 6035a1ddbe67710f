"""Bias and GELU, or bias and gated unit, in one pass, as torch ops: fake, autograd and vmap rules.

A stack of seeds has a bias for each, which torch adds in passes of its own; here it joins the
non-linearity, and its gradient is summed up while that of the other is written.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from outlast.kernels.choosing import can_fuse
from outlast.kernels.derivatives import first_only
from outlast.kernels.folding import folded
from outlast.kernels.pointwise import reference

_library = torch.library.Library("outlast", "FRAGMENT")
_library.define("bias_gelu(Tensor z, Tensor bias) -> Tensor")
_library.define("bias_gelu_backward(Tensor dy, Tensor z, Tensor bias) -> (Tensor, Tensor)")
_library.define("bias_glu(Tensor z, Tensor bias) -> Tensor")
_library.define("bias_glu_backward(Tensor dy, Tensor z, Tensor bias) -> (Tensor, Tensor)")


def back_end(z: Tensor, bias: Tensor) -> ModuleType:
    """The module to run: the fused kernel where it can, else the reference."""
    if can_fuse(z, bias):
        from outlast.kernels.pointwise import triton

        return triton
    return reference


def fused(z: Tensor, bias: Tensor) -> bool:
    """Whether these are one pass here; where they are not, torch's own operations do better."""
    return back_end(z, bias) is not reference


def bias_gelu(z: Tensor, bias: Tensor) -> Tensor:
    """gelu(z + bias) of z (..., d) and bias (d), in the type of z."""
    rows = z.reshape(1, -1, z.shape[-1])
    out: Tensor = torch.ops.outlast.bias_gelu(rows, bias.unsqueeze(0))
    return out.reshape(z.shape)


def bias_glu(z: Tensor, bias: Tensor) -> Tensor:
    """value * silu(gate) of z + bias = [value, gate]: z (..., 2 d) and bias (2 d) to (..., d)."""
    rows = z.reshape(1, -1, z.shape[-1])
    out: Tensor = torch.ops.outlast.bias_glu(rows, bias.unsqueeze(0))
    return out.reshape(*z.shape[:-1], -1)


def _bias_gelu(z: Tensor, bias: Tensor) -> Tensor:
    found: Tensor = back_end(z, bias).forward(z, bias)
    return found


def _bias_gelu_backward(dy: Tensor, z: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = back_end(z, bias).backward(dy, z, bias)
    return found


def _bias_glu(z: Tensor, bias: Tensor) -> Tensor:
    found: Tensor = back_end(z, bias).forward_glu(z, bias)
    return found


def _bias_glu_backward(dy: Tensor, z: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = back_end(z, bias).backward_glu(dy, z, bias)
    return found


@torch.library.register_fake("outlast::bias_gelu", lib=_library)
def _(z: Tensor, bias: Tensor) -> Tensor:
    return z.new_empty(z.shape)


@torch.library.register_fake("outlast::bias_glu", lib=_library)
def _(z: Tensor, bias: Tensor) -> Tensor:
    return z.new_empty(*z.shape[:-1], z.shape[-1] // 2)


@torch.library.register_fake("outlast::bias_glu_backward", lib=_library)
@torch.library.register_fake("outlast::bias_gelu_backward", lib=_library)
def _(dy: Tensor, z: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return z.new_empty(z.shape), bias.new_empty(bias.shape)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.ops.outlast.bias_gelu_backward(dy, *ctx.saved_tensors))


def _differentiate_glu(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.ops.outlast.bias_glu_backward(dy, *ctx.saved_tensors))


_refuse = first_only("bias_gelu and bias_glu have")


for _name, _run, _rule in (
    ("bias_gelu", _bias_gelu, _differentiate),
    ("bias_glu", _bias_glu, _differentiate_glu),
):
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_autograd(f"outlast::{_name}", _rule, setup_context=_save, lib=_library)
for _name, _back in (
    ("bias_gelu_backward", _bias_gelu_backward),
    ("bias_glu_backward", _bias_glu_backward),
):
    _library.impl(_name, _back, "CompositeExplicitAutograd")
    torch.library.register_autograd(f"outlast::{_name}", _refuse, lib=_library)
for _name in ("bias_gelu", "bias_gelu_backward", "bias_glu", "bias_glu_backward"):
    torch.library.register_vmap(
        f"outlast::{_name}", folded(getattr(torch.ops.outlast, _name)), lib=_library
    )
