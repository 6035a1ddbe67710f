"""`F.linear` whose vmap rule gives weight gradients that lie as the weights do.

Torch's own rule multiplies by a transposed matrix, and its gradient comes out transposed; to lay
it beside the others in a table is then a slow pass over all weights. For one seed this is
`F.linear`. The back end is torch's matrix product in either case.

In half precision on a GPU rows of outputs are filled up to whole 16 bytes (see `kernels.rows`),
and a wide map's bias goes through the product.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.kernels.choosing import product_type
from outlast.kernels.folding import folded
from outlast.kernels.rows import ALIGNED, spare, whole
from outlast.kernels.splitting import summed_product

_library = torch.library.Library("outlast", "FRAGMENT")
_library.define("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_library.define("product(Tensor x, Tensor weight) -> Tensor")

#: outputs for each input from which on a bias goes through the product: that costs a copy of the
#: inputs, and saves a pass over the outputs and a sum over their gradient
WIDE = 4


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b for x (rows, k), weight (out, k) and bias (out), all of one type."""
    out: Tensor = torch.ops.outlast.linear(x, weight, bias)
    return out


def _on_gpu(x: Tensor) -> bool:
    """Whether products go through an op of our own, whose gradients lie well in a GPU's memory."""
    return x.is_cuda


def over_last(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` over the last axis that stays one matrix product a seed under vmap.

    With an input of three axes vmap would batch over the rows too, and copy the weights for each.
    """
    flat = x.reshape(-1, x.shape[-1])
    if _on_gpu(x):
        kind = product_type(x)
        bias = None if bias is None else bias.to(kind)
        out = linear(flat.to(kind), weight.to(kind), bias)
    else:
        out = F.linear(flat, weight, bias)
    return out.reshape(*x.shape[:-1], -1)


def _half(x: Tensor) -> bool:
    """Whether this is half precision on a GPU, where products hang on how rows lie."""
    return x.is_cuda and x.dtype.itemsize == 2


def _taller(weight: Tensor, rows: int) -> Tensor:
    """The weight with rows of zeros after its own, `rows` in all."""
    extra = rows - weight.shape[1]
    return F.pad(weight, (0, 0, 0, extra)) if extra else weight


def _layout(x: Tensor, weight: Tensor) -> tuple[list[int], list[int]]:
    """Shape and strides of the product of x and weight."""
    n, rows, _ = x.shape
    out = weight.shape[1]
    wide = out + (spare(out, x.dtype) if _half(x) else 0)
    return [n, rows, out], [rows * wide, wide, 1]


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x (n, rows, k) and weight (n, out, k) to (n, rows, out), rows perhaps a little apart."""
    shape, strides = _layout(x, weight)
    table = torch.bmm(x, _taller(weight, strides[1]).mT)
    # cut in place: what is no view may be changed by whoever gets it
    return table if table.shape[-1] == shape[-1] else table.as_strided_(shape, strides)


@torch.library.register_fake("outlast::product", lib=_library)
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty_strided(*_layout(x, weight))


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    wants_x, wants_weight = ctx.needs_input_grad
    table = whole(dy)
    dx = torch.bmm(table, _taller(weight, table.shape[-1])) if wants_x else None
    return dx, summed_product(dy, x) if wants_weight else None


def _with_bias(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """x and weight with 1 and the bias beside them: the product adds it, and gives its gradient."""
    more = (0, ALIGNED - 1)
    one, own = F.pad(x.new_ones(*x.shape[:-1], 1), more), F.pad(bias.unsqueeze(-1), more)
    return torch.cat([x, one], -1), torch.cat([weight, own], -1)


def _stacked(
    info: Any, axes: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, int]:
    size, product = info.batch_size, torch.ops.outlast.product
    x, weight = (
        t.expand(size, *t.shape) if axis is None else t.movedim(axis, 0)
        for t, axis in zip((x, weight), axes, strict=False)
    )
    if bias is not None and axes[2] is not None:
        bias = bias.movedim(axes[2], 0)
        if None not in axes and _half(x) and weight.shape[1] >= WIDE * weight.shape[2]:
            return product(*_with_bias(x, weight, bias)), 0
        bias = bias.unsqueeze(1)
    out = product(x, weight)
    return out if bias is None else out + bias, 0


_library.impl("linear", F.linear, "CompositeImplicitAutograd")
_library.impl("product", _product, "CompositeExplicitAutograd")
torch.library.register_autograd(
    "outlast::product", _differentiate, setup_context=_save, lib=_library
)
torch.library.register_vmap("outlast::linear", _stacked, lib=_library)
torch.library.register_vmap("outlast::product", folded(torch.ops.outlast.product), lib=_library)
