"""QK-norm, or rotation, out of a packed projection, as torch ops.

The gradient comes in one piece; those of three views would need another pass to be joined. There
are no weights, so under `vmap` a stack of seeds is simply more batch. Only angles may differ from
seed to seed.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch import Tensor

from outlast.kernels.derivatives import first_only
from outlast.kernels.dispatch import can_fuse
from outlast.kernels.heads import reference
from outlast.kernels.register import register_op
from outlast.kernels.vmap_rules import fold, unfold

Heads = tuple[Tensor, Tensor, Tensor]


def back_end(packed: Tensor) -> ModuleType:
    """The module to run: the fused kernel where it can, else the reference."""
    if can_fuse(packed):
        from outlast.kernels.heads import triton

        if triton.fits(packed):
            return triton
    return reference


def _empty_heads(packed: Tensor, *_: Any) -> tuple[Tensor, ...]:
    b, t, three, h, d = packed.shape
    return tuple(packed.new_empty(b, t, h, d).transpose(1, 2) for _ in range(three))


# ---- QK-norm ------------------------------------------------------------------------------------


def normed_heads(packed: Tensor, eps: float = 1e-6) -> Heads:
    """q, k and v of a packed projection; q and k divided by their root mean square.

    Where nothing is fused these are torch's own operations, so every derivative exists there.

    Args:
        packed: [B, T, 3, H, D].
        eps: Added to the mean square.

    Returns:
        q, k and v, each [B, H, T, D].
    """
    if back_end(packed) is reference:
        return reference.plain(packed, eps)
    return normed_heads_op(packed, eps)


def _normed_heads(packed: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = back_end(packed).forward(packed, eps)
    return q, k, v


def _normed_heads_backward(
    dq: Tensor, dk: Tensor, dv: Tensor, packed: Tensor, eps: float
) -> Tensor:
    d_packed: Tensor = back_end(packed).backward(dq, dk, dv, packed, eps)
    return d_packed


def _save_norm(ctx: Any, inputs: tuple[Tensor, float], output: Heads) -> None:
    packed, ctx.eps = inputs
    ctx.save_for_backward(packed)


def _differentiate_norm(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, None]:
    (packed,) = ctx.saved_tensors
    return normed_heads_backward_op(dq, dk, dv, packed, ctx.eps), None


normed_heads_backward_op = register_op(
    "normed_heads_backward",
    _normed_heads_backward,
    fake=lambda dq, dk, dv, packed, eps: packed.new_empty(packed.shape),
    backward=first_only("QK-norm's kernel has"),
)
normed_heads_op = register_op(
    "normed_heads",
    _normed_heads,
    fake=_empty_heads,
    backward=_differentiate_norm,
    save=_save_norm,
)


# ---- rotation -----------------------------------------------------------------------------------


def turned_heads(packed: Tensor, cos: Tensor, sin: Tensor) -> Heads:
    """q, k and v of a packed projection; the pairs (i, i + D/2) of q and k are rotated.

    Where nothing is fused these are torch's own operations. Fused, `cos` and `sin` get no gradient.

    Args:
        packed: [B, T, 3, H, D].
        cos: [T, D / 2], in float32 or wider: 16 bit would blur distances.
        sin: As `cos`.

    Returns:
        q, k and v, each [B, H, T, D].
    """
    if back_end(packed) is reference:
        return reference.plain_turned(packed, cos[None], sin[None])
    return turned_heads_op(packed, cos[None], sin[None])


def _turned_heads(packed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = back_end(packed).turned_forward(packed, cos, sin)
    return q, k, v


def _turned_heads_backward(dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    d_packed: Tensor = back_end(dq.transpose(1, 2)).turned_backward(dq, dk, dv, cos, sin)
    return d_packed


def _empty_packed(dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    b, h, t, d = dq.shape
    return dq.new_empty(b, t, 3, h, d)


def _save_angles(ctx: Any, inputs: tuple[Tensor, ...], output: Heads) -> None:
    ctx.save_for_backward(*inputs[1:])


def _differentiate_turned(
    ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor
) -> tuple[Tensor, None, None]:
    return turned_heads_backward_op(dq, dk, dv, *ctx.saved_tensors), None, None


def _fold_with_angles(
    op: Any, info: Any, axes: tuple[int | None, ...], *args: Tensor
) -> tuple[Any, Any]:
    """The vmap rule where the last two inputs are angles, which all seeds may share."""
    size = info.batch_size
    pairs = list(zip(args, axes, strict=True))
    heads = [fold(t, axis, size) for t, axis in pairs[:-2]]
    shared = all(axis is None and len(t) == 1 for t, axis in pairs[-2:])
    angles = [t if shared else fold(t, axis, size) for t, axis in pairs[-2:]]
    return unfold(op(*heads, *angles), size)


turned_heads_backward_op = register_op(
    "turned_heads_backward",
    _turned_heads_backward,
    fake=_empty_packed,
    backward=first_only("the rotation's kernel has"),
    vmap=_fold_with_angles,
)
turned_heads_op = register_op(
    "turned_heads",
    _turned_heads,
    fake=_empty_heads,
    backward=_differentiate_turned,
    save=_save_angles,
    vmap=_fold_with_angles,
)
