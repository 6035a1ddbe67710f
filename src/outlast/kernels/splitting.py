"""Products over many rows and few outputs, in parts: one sum over thousands of rows for a small
matrix gives a GPU few tiles to work on, so the rows are split and the parts added up at the end.

A weight gradient of S seeds is such a product: (S, rows, out) and (S, rows, k) to (S, out, k).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.kernels.rows import spare, whole

#: rows and columns of a tile of a product; tiles in one call that keep a GPU busy; parts of a
#: product at most; rows of a part at least
TILE, ENOUGH, MOST, SHORTEST = 128, 128, 16, 256
#: fewer outputs than these are filled up: the copy costs nothing beside a product that reads two
#: numbers at a time
NARROW = 64


def parts(products: int, rows: int, out: int, k: int, whole: int | None = None) -> int:
    """Into how many parts to split rows: a power of two that divides them, or `whole` of them.

    Of `products` matrices (out, k), each a few tiles.
    """
    tiles = products * -(-out // TILE) * -(-k // TILE)
    most = min(MOST, ENOUGH // max(1, tiles), rows // SHORTEST)
    count = 1
    while 2 * count <= most and (whole or rows) % (2 * count) == 0:
        count *= 2
    return count


def summed_product(left: Tensor, right: Tensor) -> Tensor:
    """Of (n, rows, a) and (n, rows, b) the sum over rows, (n, a, b)."""
    width = left.shape[-1]
    table, extra = whole(left), spare(width, left.dtype)
    if table is left and extra and width < NARROW:
        table = F.pad(left, (0, extra))
    if table is not left:
        return summed_product(table, right)[:, :width]
    count = parts(left.shape[0], left.shape[1], left.shape[2], right.shape[2])
    if count == 1 or not (left.is_contiguous() and right.is_contiguous()):
        return torch.bmm(left.mT, right)
    left, right = (t.unflatten(1, (count, -1)).flatten(0, 1) for t in (left, right))
    return torch.bmm(left.mT, right).unflatten(0, (-1, count)).sum(1)
