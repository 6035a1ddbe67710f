"""Bias and GELU, or bias and gated unit, in one pass, as torch ops.

A stack of seeds has one bias per seed, which torch adds in a pass of its own. Here the bias joins
the non-linearity, and its gradient is summed up while the other gradient is written.
"""

from __future__ import annotations

from types import ModuleType

from torch import Tensor

from outlast.kernels.derivatives import first_only
from outlast.kernels.dispatch import can_fuse
from outlast.kernels.pointwise import reference
from outlast.kernels.register import register_op, save_inputs


def back_end(z: Tensor, bias: Tensor) -> ModuleType:
    """The module to run: the fused kernel where it can, else the reference."""
    if can_fuse(z, bias):
        from outlast.kernels.pointwise import triton

        return triton
    return reference


def fused(z: Tensor, bias: Tensor) -> bool:
    """Whether these are one pass here; where they are not, torch's own operations are faster."""
    return back_end(z, bias) is not reference


def bias_gelu(z: Tensor, bias: Tensor) -> Tensor:
    """gelu(z + bias), in the dtype of z.

    Args:
        z: [..., D].
        bias: [D].

    Returns:
        [..., D].
    """
    rows = z.reshape(1, -1, z.shape[-1])
    return bias_gelu_op(rows, bias.unsqueeze(0)).reshape(z.shape)


def bias_glu(z: Tensor, bias: Tensor) -> Tensor:
    """value * silu(gate), where value and gate are the two halves of z + bias.

    Args:
        z: [..., 2 D].
        bias: [2 D].

    Returns:
        [..., D].
    """
    rows = z.reshape(1, -1, z.shape[-1])
    return bias_glu_op(rows, bias.unsqueeze(0)).reshape(*z.shape[:-1], -1)


def _gelu(z: Tensor, bias: Tensor) -> Tensor:
    y: Tensor = back_end(z, bias).forward(z, bias)
    return y


def _gelu_backward(dy: Tensor, z: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    dz, d_bias = back_end(z, bias).backward(dy, z, bias)
    return dz, d_bias


def _glu(z: Tensor, bias: Tensor) -> Tensor:
    y: Tensor = back_end(z, bias).forward_glu(z, bias)
    return y


def _glu_backward(dy: Tensor, z: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    dz, d_bias = back_end(z, bias).backward_glu(dy, z, bias)
    return dz, d_bias


def _empty_gradients(dy: Tensor, z: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return z.new_empty(z.shape), bias.new_empty(bias.shape)


_refuse = first_only("bias_gelu and bias_glu have")

bias_gelu_backward_op = register_op(
    "bias_gelu_backward", _gelu_backward, fake=_empty_gradients, backward=_refuse
)
bias_gelu_op = register_op(
    "bias_gelu",
    _gelu,
    fake=lambda z, bias: z.new_empty(z.shape),
    backward=lambda ctx, dy: bias_gelu_backward_op(dy, *ctx.saved_tensors),
    save=save_inputs,
)
bias_glu_backward_op = register_op(
    "bias_glu_backward", _glu_backward, fake=_empty_gradients, backward=_refuse
)
bias_glu_op = register_op(
    "bias_glu",
    _glu,
    fake=lambda z, bias: z.new_empty(*z.shape[:-1], z.shape[-1] // 2),
    backward=lambda ctx, dy: bias_glu_backward_op(dy, *ctx.saved_tensors),
    save=save_inputs,
)
