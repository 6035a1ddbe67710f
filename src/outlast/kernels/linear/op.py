"""`F.linear` whose vmap rule gives weight gradients that lie as the weights do.

Torch's own rule multiplies by a transposed matrix, and its gradient comes out transposed; laying
it beside the others in a table is then a slow pass over all weights. For one seed this is
`F.linear`. Torch's matmul computes it in either case.

In half precision on a GPU the rows of the outputs are padded (see `kernels.row_alignment`), and
the bias of a wide map goes through the matmul.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.kernels.dispatch import matmul_dtype
from outlast.kernels.register import register_op, save_inputs
from outlast.kernels.row_alignment import ALIGNED, padded_table, padding
from outlast.kernels.split_k import matmul_over_rows
from outlast.kernels.vmap_rules import lead

#: with this many outputs per input or more, a bias goes through the matmul: that costs a copy of
#: the inputs, and saves a pass over the outputs and a sum over their gradient
WIDE = 4


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b, all of one dtype.

    Args:
        x: [rows, K].
        weight: [out, K].
        bias: [out].

    Returns:
        [rows, out].
    """
    return linear_op(x, weight, bias)


def _on_gpu(x: Tensor) -> bool:
    """Whether to take our own op, whose gradients lie well in a GPU's memory."""
    return x.is_cuda


def over_last(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` over the last axis that stays one matmul per seed under vmap.

    With an input of three axes vmap would batch over the rows too, and copy the weights for each.
    """
    flat = x.reshape(-1, x.shape[-1])
    if _on_gpu(x):
        dtype = matmul_dtype(x)
        bias = None if bias is None else bias.to(dtype)
        out = linear(flat.to(dtype), weight.to(dtype), bias)
    else:
        out = F.linear(flat, weight, bias)
    return out.reshape(*x.shape[:-1], -1)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def _stack_linear(
    op: Any,
    info: Any,
    axes: tuple[int | None, ...],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
) -> tuple[Tensor, int]:
    """The vmap rule: `batched_linear` over the seeds, the bias added or inside the matmul."""
    size = info.batch_size
    x, weight = lead(x, axes[0], size), lead(weight, axes[1], size)
    if bias is not None and axes[2] is not None:
        bias = bias.movedim(axes[2], 0)
        if None not in axes and _half(x) and weight.shape[1] >= WIDE * weight.shape[2]:
            return batched_linear(*_with_bias(x, weight, bias)), 0
        bias = bias.unsqueeze(1)
    out = batched_linear(x, weight)
    return out if bias is None else out + bias, 0


def _with_bias(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """x with a column of ones and weight with the bias: the matmul adds it, and its gradient."""
    zeros = (0, ALIGNED - 1)
    ones, column = F.pad(x.new_ones(*x.shape[:-1], 1), zeros), F.pad(bias.unsqueeze(-1), zeros)
    return torch.cat([x, ones], -1), torch.cat([weight, column], -1)


linear_op = register_op("linear", _linear, vmap=_stack_linear)


# ---- one matmul for all seeds -------------------------------------------------------------------


def _half(x: Tensor) -> bool:
    """Whether this is half precision on a GPU, where the speed of a matmul hangs on alignment."""
    return x.is_cuda and x.dtype.itemsize == 2


def _pad_outputs(weight: Tensor, out: int) -> Tensor:
    """weight [n, out', k] with rows of zeros after its own, `out` in all."""
    extra = out - weight.shape[1]
    return F.pad(weight, (0, 0, 0, extra)) if extra else weight


def _layout(x: Tensor, weight: Tensor) -> tuple[list[int], list[int]]:
    """Shape and strides of the result."""
    n, rows, _ = x.shape
    out = weight.shape[1]
    width = out + (padding(out, x.dtype) if _half(x) else 0)
    return [n, rows, out], [rows * width, width, 1]


def _batched_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [n, rows, k] and weight [n, out, k] to [n, rows, out], rows perhaps padded."""
    shape, strides = _layout(x, weight)
    table = torch.bmm(x, _pad_outputs(weight, strides[1]).mT)
    # cut in place: what is no view may be changed by whoever gets it
    return table if table.shape[-1] == shape[-1] else table.as_strided_(shape, strides)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    x_learns, weight_learns = ctx.needs_input_grad
    table = padded_table(dy)
    dx = torch.bmm(table, _pad_outputs(weight, table.shape[-1])) if x_learns else None
    return dx, matmul_over_rows(dy, x) if weight_learns else None


batched_linear = register_op(
    "batched_linear",
    _batched_linear,
    fake=lambda x, weight: x.new_empty_strided(*_layout(x, weight)),
    backward=_differentiate,
    save=save_inputs,
)
