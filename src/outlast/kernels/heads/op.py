"""QK-norm out of a packed projection as a torch op: fake, autograd and vmap rules.

The gradient comes in one piece, where those of three views would have to be put together in passes
of their own. There are no weights, so under `vmap` a stack of seeds is simply more batch.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from outlast.kernels.choosing import can_fuse
from outlast.kernels.derivatives import first_only
from outlast.kernels.folding import folded
from outlast.kernels.heads import reference

_library = torch.library.Library("outlast", "FRAGMENT")
_library.define("normed_heads(Tensor packed, float eps) -> (Tensor, Tensor, Tensor)")
_library.define(
    "normed_heads_backward(Tensor dq, Tensor dk, Tensor dv, Tensor packed, float eps) -> Tensor"
)


def back_end(packed: Tensor) -> ModuleType:
    """The module to run: the fused kernel where it can, else the reference."""
    if can_fuse(packed):
        from outlast.kernels.heads import triton

        if triton.fits(packed):
            return triton
    return reference


def normed_heads(packed: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v (b, h, t, d) of packed (b, t, 3, h, d); q and k over their root mean square.

    Where nothing is fused these are torch's own operations, so every derivative exists there.
    """
    if back_end(packed) is reference:
        return reference.plain(packed, eps)
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.outlast.normed_heads(packed, eps)
    return found


def _normed_heads(packed: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = back_end(packed).forward(packed, eps)
    return found


def _normed_heads_backward(
    dq: Tensor, dk: Tensor, dv: Tensor, packed: Tensor, eps: float
) -> Tensor:
    found: Tensor = back_end(packed).backward(dq, dk, dv, packed, eps)
    return found


@torch.library.register_fake("outlast::normed_heads", lib=_library)
def _(packed: Tensor, eps: float) -> tuple[Tensor, ...]:
    b, t, _, h, d = packed.shape
    return tuple(packed.new_empty(b, t, h, d).transpose(1, 2) for _ in range(3))


@torch.library.register_fake("outlast::normed_heads_backward", lib=_library)
def _(dq: Tensor, dk: Tensor, dv: Tensor, packed: Tensor, eps: float) -> Tensor:
    return packed.new_empty(packed.shape)


def _save(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, ...]) -> None:
    packed, ctx.eps = inputs
    ctx.save_for_backward(packed)


def _differentiate(ctx: Any, *above: Tensor) -> tuple[Tensor, None]:
    return torch.ops.outlast.normed_heads_backward(*above, *ctx.saved_tensors, ctx.eps), None


_refuse = first_only("QK-norm's kernel has")


_library.impl("normed_heads", _normed_heads, "CompositeExplicitAutograd")
_library.impl("normed_heads_backward", _normed_heads_backward, "CompositeExplicitAutograd")
torch.library.register_autograd(
    "outlast::normed_heads", _differentiate, setup_context=_save, lib=_library
)
torch.library.register_autograd("outlast::normed_heads_backward", _refuse, lib=_library)
for _name in ("normed_heads", "normed_heads_backward"):
    torch.library.register_vmap(
        f"outlast::{_name}", folded(getattr(torch.ops.outlast, _name)), lib=_library
    )
