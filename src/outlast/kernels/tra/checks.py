"""What a call may hold: each mistake is said with the field, the value and what is accepted."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outlast.errors import bad_value
from outlast.kernels.choosing import product_type
from outlast.kernels.tra.setting import Setting


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape))


def _tensors(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> None:
    if q.dim() != 4 or 0 in q.shape:
        raise bad_value("q", _shape(q), "a shape of batch x heads x queries x width, none of it 0")
    batch, heads, queries, width = q.shape
    if k.dim() != 4 or k.shape[0] != batch or k.shape[3] != width or 0 in k.shape:
        raise bad_value("k", _shape(k), f"a shape of {batch} x key heads x keys x {width}")
    if heads % k.shape[1]:
        raise bad_value("k", _shape(k), f"a number of key heads that divides the {heads} heads")
    if v.shape != k.shape:
        raise bad_value("v", _shape(v), f"the shape of k, {_shape(k)}")
    if gate.shape != q.shape[:3]:
        raise bad_value("gate", _shape(gate), f"a shape of {batch}x{heads}x{queries}")
    for name, tensor in (("q", q), ("k", k), ("v", v), ("gate", gate)):
        if not tensor.is_floating_point():
            raise bad_value(name, tensor.dtype, "a floating point type")
    for name, tensor in (("k", k), ("v", v)):
        # types that differ may still be made one, by autocast
        if tensor.dtype != q.dtype and product_type(tensor) != product_type(q):
            raise bad_value(name, tensor.dtype, f"the type of q, {q.dtype}")


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    threshold: float,
    scale: float | None,
    offset: int | None,
    normalised: bool,
    tolerance: float | None,
) -> Setting:
    """The numbers of the call with their defaults filled in."""
    _tensors(q, k, v, gate)
    width = q.shape[3]
    scale = width**-0.5 if scale is None else scale
    if not (scale > 0 and math.isfinite(scale)):
        raise bad_value("scale", scale, "a number > 0")
    if math.isnan(threshold) or threshold == math.inf:
        raise bad_value("threshold", threshold, "a number, or minus infinity to keep every key")
    if tolerance is not None and not 0 <= tolerance < 1:
        raise bad_value("tolerance", tolerance, "a number from 0 to below 1, or None")
    if tolerance and not normalised:
        raise bad_value("tolerance", tolerance, "None unless normalised=True bounds the scores")
    if offset is None:
        offset = k.shape[2] - q.shape[2]
    elif isinstance(offset, bool) or not isinstance(offset, int | torch.SymInt):
        raise bad_value("offset", offset, "a whole number")
    bound = scale * width if normalised else 0.0
    return Setting(threshold, scale, offset, bound, tolerance or 0.0)


def real_keys(
    lengths: Tensor | None, padding: str, k: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The first real key of every row and the first one after the real ones."""
    if padding not in ("right", "left"):
        raise bad_value("padding", padding, "right | left")
    if lengths is None:
        return None, None
    batch, keys = k.shape[0], k.shape[2]
    if not isinstance(lengths, Tensor):
        raise bad_value("lengths", lengths, f"a tensor of {batch} whole numbers")
    if lengths.shape != (batch,) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        found = f"{lengths.dtype} of shape {_shape(lengths)}"
        raise bad_value("lengths", found, f"{batch} whole numbers, one for each row of the batch")
    counts = lengths.to(k.device, torch.int32).clamp(0, keys)
    zero = torch.zeros_like(counts)
    if padding == "right":
        return zero, counts
    return keys - counts, zero + keys
