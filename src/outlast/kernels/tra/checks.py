"""What a call may hold: each mistake is said with the field, the value and what is accepted."""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor

from outlast.arguments import check_flag, shown
from outlast.errors import bad_value
from outlast.kernels.dispatch import hides_numbers, matmul_dtype
from outlast.kernels.tra.setting import Setting

#: where a row ends that has no padding after its keys: it may go on past them
NEVER = 2**31 - 1
#: the largest offset: places are counted in 32 bits
MOST_OFFSET = 2**30
#: the largest number that fits into a float: whole numbers may be larger
LARGEST = sys.float_info.max
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a single number"


def _number(name: str, value: object, accepted: str, whole: bool = False) -> None:
    kinds = (int, torch.SymInt) if whole else (int, torch.SymInt, float, torch.SymFloat)
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise bad_value(name, shown(value), accepted)
    if type(value) is int and abs(value) > LARGEST:  # a number that nobody would read
        raise bad_value(name, f"a whole number of {value.bit_length()} bits", accepted)


def check_word(name: str, value: object, words: tuple[str, ...]) -> None:
    """Refuse what is not one of these words."""
    if not isinstance(value, str) or value not in words:
        raise bad_value(name, shown(value), " | ".join(words))


def check_dense(name: str, tensor: object, device: torch.device | None = None) -> None:
    """Refuse what is no tensor of rows and columns in memory, before anything is asked of it."""
    if not isinstance(tensor, Tensor):
        raise bad_value(name, shown(tensor), "a tensor")
    if tensor.is_nested:
        raise bad_value(name, "a nested tensor", "a padded one; lengths= says what is real")
    if tensor.layout != torch.strided:
        raise bad_value(name, f"a tensor of layout {tensor.layout}", "a dense one (torch.strided)")
    if device is not None and tensor.device != device:
        raise bad_value(name, f"a tensor on {tensor.device}", f"one on {device}, as the others are")


def _tensors(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v), ("gate", gate)):
        check_dense(name, tensor, None if tensor is q else q.device)
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
        if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
            raise bad_value(name, tensor.dtype, "a floating point type of 16 bits or more")
    for name, tensor in (("k", k), ("v", v)):
        # types that differ may still be made one, by autocast
        if tensor.dtype != q.dtype and matmul_dtype(tensor) != matmul_dtype(q):
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
    check_flag("normalised", normalised)
    width = q.shape[3]
    scale = width**-0.5 if scale is None else scale
    # comparisons alone: these numbers may be symbols, where torch compiles for any of them
    accepted = "a number > 0"
    _number("scale", scale, accepted)
    if not 0 < scale < math.inf:
        raise bad_value("scale", scale, accepted)
    accepted = "a number, or minus infinity to keep every key"
    _number("threshold", threshold, accepted)
    if not threshold < math.inf:
        raise bad_value("threshold", threshold, accepted)
    if tolerance is not None:
        accepted = "a number from 0 to below 1, or None"
        _number("tolerance", tolerance, accepted)
        if not 0 <= tolerance < 1:
            raise bad_value("tolerance", tolerance, accepted)
    if tolerance and not normalised:
        raise bad_value("tolerance", tolerance, "None unless normalised=True bounds the scores")
    if offset is None:
        offset = k.shape[2] - q.shape[2]
    else:
        accepted = f"a whole number from -{MOST_OFFSET} to {MOST_OFFSET}"
        _number("offset", offset, accepted, whole=True)
        if not -MOST_OFFSET <= offset <= MOST_OFFSET:
            raise bad_value("offset", offset, accepted)
    bound = scale * width if normalised else 0.0
    return Setting(threshold, scale, offset, bound, tolerance or 0.0)


def real_keys(
    lengths: Tensor | None, padding: str, k: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The first real key of every row, and where it ends: queries from there on are padding.

    On a GPU lengths out of range are taken as the nearest in it, as looking would wait for it.
    """
    check_word("padding", padding, ("right", "left"))
    if lengths is None:
        return None, None
    batch, keys = k.shape[0], k.shape[2]
    if not isinstance(lengths, Tensor):
        raise bad_value("lengths", shown(lengths), f"a tensor of {batch} whole numbers")
    # lengths on the CPU are copied to where the keys are; a meta tensor has nothing to copy
    check_dense("lengths", lengths, k.device if lengths.is_meta else None)
    if lengths.shape != (batch,) or lengths.dtype not in _WHOLE:
        value = f"{lengths.dtype} of shape {_shape(lengths)}"
        raise bad_value("lengths", value, f"{batch} whole numbers, one for each row of the batch")
    if lengths.device.type == "cpu" and not hides_numbers(lengths):
        low, high = (int(bound) for bound in lengths.aminmax())
        if low < 0 or high > keys:
            wrong = low if low < 0 else high
            raise bad_value("lengths", wrong, f"whole numbers from 0 to the {keys} keys there are")
    counts = lengths.to(k.device, torch.int32).clamp(0, keys)
    never = torch.full_like(counts, NEVER)
    if padding == "right":
        return torch.zeros_like(counts), torch.where(counts == keys, never, counts)
    return keys - counts, never
