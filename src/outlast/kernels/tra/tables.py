"""Tile sizes of the fused kernels, chosen beforehand: nothing is searched for at run time.

By pass, by how numbers are multiplied (`half`: bfloat16 and float16; `tf32`; `exact`: float32 to
its last bits, as three matmuls of tf32), and by head width. `half` at widths 64 and 128 was
measured on an H200, where small tiles with four warps won; the rest follows from it. Every entry
fits the shared memory of a Hopper card. Compiled for one, `half` and `tf32` spill some registers in
the backward pass, most at width 256, and `exact` many from width 32: right, but not tuned.

`alone` and `in_one` are the backward pass of short sequences: a head is one tile, or its queries
are. They are made for `half`; tf32 keeps a second, transposed copy of most of what it has on chip,
so there is no entry where that does not fit.

Eight warps want tiles of 128 queries: on 64 by 64 they would compute everything twice.

The passes over one score must use the same kind of matrix instruction, or their masks could
differ in the last bit: in `half` and `tf32` the left factor of a score has 64 rows or more (a warp
group's matmul), in `exact` fewer (a warp's).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Pass = Literal["forward", "of_queries", "of_keys", "alone", "in_one", "decode"]
Arithmetic = Literal["half", "tf32", "exact"]


class Tiles(NamedTuple):
    """Queries and keys of a tile, warps of a program, stages of its pipeline.

    `registers` is the most a thread may use, where fewer let one more program on a processor.
    Keys of `of_keys` are a multiple of those of `of_queries`, and its queries a divisor.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None


_WIDTHS = (16, 32, 64, 128, 256)
_TABLE: dict[tuple[Pass, Arithmetic], tuple[Tiles | None, ...]] = {
    ("forward", "half"): (
        Tiles(64, 64, 4, 2),
        Tiles(64, 64, 4, 2),
        Tiles(64, 64, 4, 2),
        Tiles(64, 32, 4, 2, 128),
        Tiles(64, 32, 4, 2),
    ),
    ("of_queries", "half"): (
        Tiles(64, 64, 4, 2),
        Tiles(64, 64, 4, 2),
        Tiles(64, 64, 4, 3, 168),
        Tiles(64, 64, 4, 2),
        Tiles(64, 32, 8, 2),
    ),
    ("of_keys", "half"): (
        Tiles(64, 64, 4, 2),
        Tiles(64, 64, 4, 2),
        Tiles(64, 64, 4, 2, 168),
        Tiles(64, 64, 4, 2),
        Tiles(32, 64, 8, 2),
    ),
    ("forward", "tf32"): (
        Tiles(64, 64, 4, 2),
        Tiles(64, 64, 4, 2),
        Tiles(64, 32, 4, 2),
        Tiles(64, 32, 4, 2),
        Tiles(64, 16, 8, 2),
    ),
    ("of_queries", "tf32"): (
        Tiles(64, 32, 4, 2),
        Tiles(64, 32, 4, 2),
        Tiles(64, 32, 4, 2),
        Tiles(64, 32, 4, 1),
        Tiles(64, 16, 8, 1),
    ),
    ("of_keys", "tf32"): (
        Tiles(32, 64, 4, 2),
        Tiles(32, 64, 4, 2),
        Tiles(32, 64, 4, 2),
        Tiles(32, 64, 8, 2),
        Tiles(16, 64, 8, 1),
    ),
    ("forward", "exact"): (
        Tiles(32, 32, 4, 1),
        Tiles(32, 32, 4, 1),
        Tiles(32, 32, 4, 1),
        Tiles(32, 16, 4, 1),
        Tiles(16, 16, 8, 1),
    ),
    ("of_queries", "exact"): (
        Tiles(32, 32, 4, 1),
        Tiles(32, 32, 4, 1),
        Tiles(32, 32, 4, 1),
        Tiles(16, 16, 8, 1),
        Tiles(16, 16, 8, 1),
    ),
    ("of_keys", "exact"): (
        Tiles(32, 32, 4, 1),
        Tiles(32, 32, 4, 1),
        Tiles(32, 32, 4, 1),
        Tiles(16, 16, 8, 1),
        Tiles(16, 16, 8, 1),
    ),
    ("alone", "half"): (
        Tiles(64, 64, 4, 1, 128),
        Tiles(64, 64, 4, 1, 128),
        Tiles(64, 64, 4, 1, 168),
        Tiles(64, 64, 4, 1),
        None,
    ),
    ("in_one", "half"): (
        Tiles(128, 64, 8, 2, 128),
        Tiles(128, 64, 8, 2, 128),
        Tiles(128, 32, 8, 2, 128),
        Tiles(128, 32, 8, 2),
        None,
    ),
    ("alone", "tf32"): (
        Tiles(64, 64, 4, 1, 128),
        Tiles(64, 64, 4, 1),
        Tiles(64, 64, 4, 1),
        None,
        None,
    ),
    ("in_one", "tf32"): (
        Tiles(128, 32, 8, 1, 128),
        Tiles(128, 32, 8, 1, 128),
        Tiles(128, 32, 8, 1),
        None,
        None,
    ),
    ("decode", "half"): (
        Tiles(16, 128, 4, 3),
        Tiles(16, 128, 4, 3),
        Tiles(16, 64, 2, 3),
        Tiles(16, 64, 4, 2),
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
        Tiles(16, 16, 8, 2),
    ),
}
#: where reading may stop early, the loops are short and other things count
_EARLY: dict[tuple[Pass, Arithmetic, int], Tiles] = {
    ("forward", "half", 64): Tiles(64, 64, 4, 2, 128),
    ("of_keys", "half", 64): Tiles(64, 64, 4, 2),
}


def made_for(which: Pass, arithmetic: Arithmetic, width: int) -> bool:
    """Whether there is such a pass: those for short sequences are not made for everything."""
    return (which, arithmetic) in _TABLE and bool(_TABLE[which, arithmetic][_WIDTHS.index(width)])


def tiles(which: Pass, arithmetic: Arithmetic, width: int, early: bool = False) -> Tiles:
    """The tiles of one pass for heads of this width, a power of two from 16 to 256."""
    if early and (which, arithmetic, width) in _EARLY:
        return _EARLY[which, arithmetic, width]
    entry = _TABLE[which, arithmetic][_WIDTHS.index(width)]
    if entry is None:
        raise KeyError(f"{which} is not made for {arithmetic} at width {width}")
    return entry
