"""Rows of half-precision numbers that begin at whole 16 bytes, as the fast matrix products ask.

Rows of 1,036 such numbers do not, and are read two numbers at a time. So a table is made a few
columns wider, and its first ones are handed on, a view. That rows begin where they should is not
yet enough: the fast products also ask for whole 16 bytes of columns. Hence a product takes the
`whole` table again, against rows of zeros in the other matrix, and whoever makes such a table
leaves zeros in its spare columns: zero times NaN would be NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: numbers of two bytes in 16
ALIGNED = 8


def spare(width: int, dtype: torch.dtype) -> int:
    """How many columns a table of this width lacks."""
    return -width % ALIGNED if dtype.itemsize == 2 else 0


def filled_up(like: Tensor) -> Tensor:
    """An empty tensor like this one, the first columns of a table that is filled up."""
    *lead, width = like.shape
    return like.new_empty(*lead, width + spare(width, like.dtype))[..., :width]


def whole(cut: Tensor) -> Tensor:
    """The table that has `cut` as its first columns, with the spare ones; `cut` if there is none.

    None is taken for a `cut` that is differentiated: its gradient is asked for, not the table's.
    """
    table, extra = cut._base, spare(cut.shape[-1], cut.dtype)
    shape = torch.Size((*cut.shape[:-1], cut.shape[-1] + extra))
    if not extra or table is None or cut.requires_grad or table.numel() != shape.numel():
        return cut
    if not table.is_contiguous() or table.storage_offset() != cut.storage_offset():
        return cut
    table = table.view(shape)
    return table if table.stride() == cut.stride() else cut
