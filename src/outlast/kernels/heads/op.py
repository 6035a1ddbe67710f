"""QK-norm, or rotation, out of a packed projection as torch ops: fake, autograd and vmap rules.

The gradient comes in one piece, where those of three views would have to be put together in passes
of their own. There are no weights, so under `vmap` a stack of seeds is simply more batch; only
angles may be a seed's own.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from outlast.kernels.choosing import can_fuse
from outlast.kernels.derivatives import first_only
from outlast.kernels.folding import fold, folded, unfold_all
from outlast.kernels.heads import reference

_library = torch.library.Library("outlast", "FRAGMENT")
_library.define("normed_heads(Tensor packed, float eps) -> (Tensor, Tensor, Tensor)")
_library.define(
    "normed_heads_backward(Tensor dq, Tensor dk, Tensor dv, Tensor packed, float eps) -> Tensor"
)
_library.define("turned_heads(Tensor packed, Tensor cos, Tensor sin) -> (Tensor, Tensor, Tensor)")
_library.define(
    "turned_heads_backward(Tensor dq, Tensor dk, Tensor dv, Tensor cos, Tensor sin) -> Tensor"
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


def turned_heads(packed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v (b, h, t, d) of packed (b, t, 3, h, d); pairs (i, i + d/2) of q and k rotated.

    cos and sin (t, d / 2), in float32 or wider: rounded to 16 bit, distances would be blurred. They
    have no gradient where this is fused; else these are torch's own operations.
    """
    if back_end(packed) is reference:
        return reference.plain_turned(packed, cos[None], sin[None])
    found: tuple[Tensor, Tensor, Tensor]
    found = torch.ops.outlast.turned_heads(packed, cos[None], sin[None])
    return found


def _normed_heads(packed: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = back_end(packed).forward(packed, eps)
    return found


def _normed_heads_backward(
    dq: Tensor, dk: Tensor, dv: Tensor, packed: Tensor, eps: float
) -> Tensor:
    found: Tensor = back_end(packed).backward(dq, dk, dv, packed, eps)
    return found


def _turned_heads(packed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = back_end(packed).turned_forward(packed, cos, sin)
    return found


def _turned_heads_backward(dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    found: Tensor = back_end(dq.transpose(1, 2)).turned_backward(dq, dk, dv, cos, sin)
    return found


@torch.library.register_fake("outlast::normed_heads", lib=_library)
def _(packed: Tensor, eps: float) -> tuple[Tensor, ...]:
    b, t, _, h, d = packed.shape
    return tuple(packed.new_empty(b, t, h, d).transpose(1, 2) for _ in range(3))


@torch.library.register_fake("outlast::normed_heads_backward", lib=_library)
def _(dq: Tensor, dk: Tensor, dv: Tensor, packed: Tensor, eps: float) -> Tensor:
    return packed.new_empty(packed.shape)


@torch.library.register_fake("outlast::turned_heads", lib=_library)
def _(packed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    b, t, _, h, d = packed.shape
    return tuple(packed.new_empty(b, t, h, d).transpose(1, 2) for _ in range(3))


@torch.library.register_fake("outlast::turned_heads_backward", lib=_library)
def _(dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    b, h, t, d = dq.shape
    return dq.new_empty(b, t, 3, h, d)


def _save(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, ...]) -> None:
    packed, ctx.eps = inputs
    ctx.save_for_backward(packed)


def _differentiate(ctx: Any, *above: Tensor) -> tuple[Tensor, None]:
    return torch.ops.outlast.normed_heads_backward(*above, *ctx.saved_tensors, ctx.eps), None


def _save_turns(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[1:])


def _differentiate_turned(ctx: Any, *above: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.outlast.turned_heads_backward(*above, *ctx.saved_tensors), None, None


def _with_turns(op: Any) -> Any:
    """The vmap rule where the last two inputs are angles, which all seeds may share."""

    def rule(info: Any, axes: tuple[int | None, ...], *args: Tensor) -> tuple[Any, Any]:
        size = info.batch_size
        split = len(args) - 2
        pairs = list(zip(args, axes, strict=True))
        data = [fold(t, axis, size) for t, axis in pairs[:split]]
        shared = all(axis is None and len(t) == 1 for t, axis in pairs[split:])
        turns = [t if shared else fold(t, axis, size) for t, axis in pairs[split:]]
        return unfold_all(op(*data, *turns), size)

    return rule


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
_library.impl("turned_heads", _turned_heads, "CompositeExplicitAutograd")
_library.impl("turned_heads_backward", _turned_heads_backward, "CompositeExplicitAutograd")
torch.library.register_autograd(
    "outlast::turned_heads", _differentiate_turned, setup_context=_save_turns, lib=_library
)
torch.library.register_autograd(
    "outlast::turned_heads_backward", first_only("the rotation's kernel has"), lib=_library
)
for _name in ("turned_heads", "turned_heads_backward"):
    torch.library.register_vmap(
        f"outlast::{_name}", _with_turns(getattr(torch.ops.outlast, _name)), lib=_library
    )
