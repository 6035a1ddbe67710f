"""Tables in half precision whose rows begin at multiples of 16 bytes, as fast matmuls require.

A table of 1,036 columns does not fulfil that, and a matmul then reads it two numbers at a time. So
we allocate a few columns more and hand on a view of the first ones. A matmul must get the padded
table again, because it also requires that the number of columns is a multiple of 16 bytes; the
other matrix gets rows of zeros. Whoever makes a padded table leaves zeros in its padding: zero
times NaN would be NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: half-precision numbers in 16 bytes
ALIGNED = 8


def padding(width: int, dtype: torch.dtype) -> int:
    """How many columns a table of this width must be padded by."""
    return -width % ALIGNED if dtype.itemsize == 2 else 0


def empty_aligned(like: Tensor) -> Tensor:
    """An empty tensor like this one, a view of the first columns of a padded table."""
    *lead, width = like.shape
    return like.new_empty(*lead, width + padding(width, like.dtype))[..., :width]


def padded_table(view: Tensor) -> Tensor:
    """The padded table that `view` is the first columns of; `view` itself if there is none.

    A `view` that requires a gradient is returned as it is: the gradient is asked of the view.
    """
    table, extra = view._base, padding(view.shape[-1], view.dtype)
    shape = torch.Size((*view.shape[:-1], view.shape[-1] + extra))
    if not extra or table is None or view.requires_grad or table.numel() != shape.numel():
        return view
    if not table.is_contiguous() or table.storage_offset() != view.storage_offset():
        return view
    table = table.view(shape)
    return table if table.stride() == view.stride() else view
