"""The whole attention of one head as a small PNG; weights and pixels, block by block.

A picture has one pixel for a query and a key, or for a square of them where there are many. The
pixel of a square shows its largest weight. Colours are transparent over the page, so that a picture
fits light and dark.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outlast.mixers.attention.look import AttentionBlock

#: the most pixels of a side
SIDE = 1024
#: levels of a pixel: a key after its query, a key with weight 0, and the square root of a weight
#: as a share of the largest of its query
LATER, DROPPED, FIRST, LAST = 0, 1, 2, 255
#: red, green, blue; the weight is the opacity
INK, DROPPED_INK, DROPPED_OPACITY = (58, 134, 190), (190, 140, 60), 130

Pixels = NDArray[np.uint8]


class MapKeeper:
    """A hook that keeps the weights of one head as levels of pixels, (side, side)."""

    def __init__(self, head: int, tokens: int) -> None:
        self.head, self.tokens = head, tokens
        self.square = -(-tokens // SIDE)
        side = -(-tokens // self.square)
        self.levels: Pixels = np.full((side, side), LATER, np.uint8)

    def __call__(self, block: AttentionBlock) -> None:
        rows = levels_of(block.weights[0, self.head], block.first)
        width = self.levels.shape[1] * self.square
        padded = np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=LATER)
        pooled = padded.reshape(len(rows), -1, self.square).max(2)
        for offset, row in enumerate(pooled):
            place = (block.first + offset) // self.square
            np.maximum(self.levels[place], row, out=self.levels[place])


def levels_of(weights: Tensor, first: int) -> Pixels:
    """Levels (queries, keys) of weights whose first query has a number in its sequence."""
    values = weights.detach().float().cpu().numpy()
    sizes = np.clip(np.nan_to_num(values), 0, None)
    largest = sizes.max(1, keepdims=True)
    shares = np.divide(sizes, largest, out=np.zeros_like(sizes), where=largest > 0)
    levels = FIRST + np.rint(np.sqrt(shares) * (LAST - FIRST))
    levels[values == 0] = DROPPED
    queries, keys = values.shape
    levels[np.arange(keys)[None] > first + np.arange(queries)[:, None]] = LATER
    return levels.astype(np.uint8)


def png(levels: Pixels) -> bytes:
    """Levels as a PNG with a palette."""
    height, width = levels.shape
    colours = [(0, 0, 0), DROPPED_INK, *[INK] * (LAST - FIRST + 1)]
    opacities = [0, DROPPED_OPACITY, *np.linspace(8, 255, LAST - FIRST + 1).astype(int).tolist()]
    rows = np.pad(levels, ((0, 0), (1, 0)))  # each row begins with its filter: none
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    palette = bytes(part for colour in colours for part in colour)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data)
        for kind, data in (
            (b"IHDR", header),
            (b"PLTE", palette),
            (b"tRNS", bytes(opacities)),
            (b"IDAT", zlib.compress(rows.tobytes(), 6)),
            (b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
