"""`F.linear` whose vmap rule gives weight gradients that lie as the weights do.

Torch's own rule multiplies by a transposed matrix, and its gradient comes out transposed; to lay
it beside the others in a table is then a slow pass over all weights. For one seed this is
`F.linear`. The back end is torch's matrix product in either case.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.kernels.folding import folded
from outlast.kernels.splitting import summed_product

_library = torch.library.Library("outlast", "FRAGMENT")
_library.define("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_library.define("product(Tensor x, Tensor weight) -> Tensor")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b for x (rows, k), weight (out, k) and bias (out), all of one type."""
    out: Tensor = torch.ops.outlast.linear(x, weight, bias)
    return out


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x (n, rows, k) and weight (n, out, k) to (n, rows, out)."""
    return torch.bmm(x, weight.mT)


@torch.library.register_fake("outlast::product", lib=_library)
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    wants_x, wants_weight = ctx.needs_input_grad
    dx = torch.bmm(dy, weight) if wants_x else None
    return dx, summed_product(dy, x) if wants_weight else None


def _stacked(
    info: Any, axes: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, int]:
    size = info.batch_size
    x, weight = (
        t.expand(size, *t.shape) if axis is None else t.movedim(axis, 0)
        for t, axis in zip((x, weight), axes, strict=False)
    )
    out: Tensor = torch.ops.outlast.product(x, weight)
    if bias is not None:
        bias = bias if axes[2] is None else bias.movedim(axes[2], 0).unsqueeze(1)
        out = out + bias
    return out, 0


_library.impl("linear", F.linear, "CompositeImplicitAutograd")
_library.impl("product", _product, "CompositeExplicitAutograd")
torch.library.register_autograd(
    "outlast::product", _differentiate, setup_context=_save, lib=_library
)
torch.library.register_vmap("outlast::linear", _stacked, lib=_library)
torch.library.register_vmap("outlast::product", folded(torch.ops.outlast.product), lib=_library)
