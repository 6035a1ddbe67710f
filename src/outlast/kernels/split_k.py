"""Split-k matmuls: the summed axis is split into chunks, which are added up at the end.

A matmul that sums over thousands of rows into a small matrix has few output tiles, too few to keep
a GPU busy. The weight gradient of S seeds is one: [S, rows, out] and [S, rows, k] to [S, out, k].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.kernels.row_alignment import padded_table, padding

#: rows and columns of an output tile
TILE = 128
#: tiles in one call that keep a GPU busy
ENOUGH_TILES = 128
#: a matmul is split into at most this many chunks
MOST_CHUNKS = 16
#: a chunk has at least this many rows
FEWEST_ROWS = 256
#: fewer outputs than these are padded: that copy costs nothing beside an unaligned matmul
FEW_OUTPUTS = 64


def chunk_count(matmuls: int, rows: int, out: int, k: int, divides: int | None = None) -> int:
    """Into how many chunks the rows are split: a power of two.

    Args:
        matmuls: How many results [out, k] one call has.
        rows: The length of the summed axis.
        out: Rows of a result.
        k: Columns of a result.
        divides: What the count must divide; by default the rows.
    """
    tiles = matmuls * -(-out // TILE) * -(-k // TILE)
    most = min(MOST_CHUNKS, ENOUGH_TILES // max(1, tiles), rows // FEWEST_ROWS)
    count = 1
    while 2 * count <= most and (divides or rows) % (2 * count) == 0:
        count *= 2
    return count


def matmul_over_rows(left: Tensor, right: Tensor) -> Tensor:
    """left^T right: [n, rows, a] and [n, rows, b] to [n, a, b], the sum over rows in chunks."""
    width = left.shape[-1]
    table, extra = padded_table(left), padding(width, left.dtype)
    if table is left and extra and width < FEW_OUTPUTS:
        table = F.pad(left, (0, extra))
    if table is not left:
        return matmul_over_rows(table, right)[:, :width]
    count = chunk_count(left.shape[0], left.shape[1], left.shape[2], right.shape[2])
    if count == 1 or not (left.is_contiguous() and right.is_contiguous()):
        return torch.bmm(left.mT, right)
    left, right = (t.unflatten(1, (count, -1)).flatten(0, 1) for t in (left, right))
    return torch.bmm(left.mT, right).unflatten(0, (-1, count)).sum(1)
