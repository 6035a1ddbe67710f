"""Tile sizes of the fused kernels, chosen beforehand: nothing is searched for at run time.

By pass, by how numbers are multiplied (`half`: bfloat16 and float16; `tf32`; `exact`: float32 as
it is), and by head width. Small tiles with four warps won on an H200 (see benchmarks/RESULTS.md);
every entry fits the shared memory of a Hopper card and was compiled for one without spills in its
loops, except where a comment says otherwise.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Pass = Literal["forward", "of_queries", "of_keys", "decode"]
Arithmetic = Literal["half", "tf32", "exact"]


class Tiles(NamedTuple):
    """Queries and keys of a tile, warps of a program, stages of its pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int


_WIDTHS = (16, 32, 64, 128, 256)
_TABLE: dict[tuple[Pass, Arithmetic], tuple[Tiles, ...]] = {
    ("forward", "half"): (
        Tiles(64, 64, 4, 2),
        Tiles(64, 64, 4, 2),
        Tiles(64, 64, 4, 2),
        Tiles(128, 32, 4, 2),
        Tiles(64, 32, 4, 2),
    ),
    ("of_queries", "half"): (
        Tiles(64, 64, 4, 2),
        Tiles(64, 64, 4, 2),
        Tiles(64, 64, 4, 2),
        Tiles(64, 64, 4, 2),
        Tiles(64, 32, 4, 1),
    ),
    ("of_keys", "half"): (
        Tiles(64, 64, 4, 2),
        Tiles(64, 64, 4, 2),
        Tiles(64, 64, 4, 2),
        Tiles(64, 64, 8, 2),
        Tiles(32, 32, 4, 1),
    ),
    ("forward", "tf32"): (
        Tiles(64, 64, 4, 2),
        Tiles(64, 64, 4, 2),
        Tiles(64, 32, 4, 2),
        Tiles(64, 32, 4, 2),
        Tiles(64, 16, 4, 2),
    ),
    ("of_queries", "tf32"): (
        Tiles(64, 32, 4, 2),
        Tiles(64, 32, 4, 2),
        Tiles(64, 32, 4, 2),
        Tiles(64, 32, 4, 1),
        Tiles(64, 16, 4, 1),
    ),
    ("of_keys", "tf32"): (
        Tiles(32, 32, 4, 2),
        Tiles(32, 32, 4, 2),
        Tiles(32, 32, 4, 2),
        Tiles(32, 32, 4, 1),
        Tiles(16, 16, 4, 1),
    ),
    ("forward", "exact"): (
        Tiles(32, 32, 4, 1),
        Tiles(32, 32, 4, 1),
        Tiles(32, 32, 4, 1),
        Tiles(32, 16, 4, 1),
        Tiles(32, 16, 8, 1),
    ),
    ("of_queries", "exact"): (
        Tiles(32, 32, 4, 1),
        Tiles(32, 32, 4, 1),
        Tiles(32, 32, 4, 1),
        Tiles(32, 16, 4, 1),
        Tiles(16, 16, 8, 1),
    ),
    ("of_keys", "exact"): (
        Tiles(32, 32, 4, 1),
        Tiles(32, 32, 4, 1),
        Tiles(32, 32, 4, 1),
        Tiles(16, 16, 4, 1),
        Tiles(16, 16, 8, 1),
    ),
    ("decode", "half"): (
        Tiles(16, 128, 4, 3),
        Tiles(16, 128, 4, 3),
        Tiles(16, 64, 4, 4),
        Tiles(16, 64, 4, 3),
        Tiles(16, 32, 4, 3),
    ),
    ("decode", "tf32"): (
        Tiles(16, 64, 4, 3),
        Tiles(16, 64, 4, 3),
        Tiles(16, 64, 4, 3),
        Tiles(16, 32, 4, 3),
        Tiles(16, 16, 4, 3),
    ),
    ("decode", "exact"): (
        Tiles(16, 32, 4, 2),
        Tiles(16, 32, 4, 2),
        Tiles(16, 32, 4, 2),
        Tiles(16, 16, 4, 2),
        Tiles(16, 16, 4, 2),
    ),
}


def tiles(which: Pass, arithmetic: Arithmetic, width: int) -> Tiles:
    """The tiles of one pass for heads of this width, a power of two from 16 to 256."""
    return _TABLE[which, arithmetic][_WIDTHS.index(width)]
