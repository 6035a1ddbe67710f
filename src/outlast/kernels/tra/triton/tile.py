"""What the passes share of one tile of scores: their masks must agree to the bit.

One flipped key would shift every count to its left, so the forward pass and both halves of the
backward pass take their scores from the same matmul of the same types, compare them with 0 in the
same way, and make flags and counts here. Counting is a matmul with a triangle of ones: exact in
half precision up to 2,048 and several times faster than a scan.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def program(blocks, together):
    """Block and head of this program: late blocks first, `together` heads side by side.

    Late query blocks see the most keys, so they start first; few heads at a time keep their keys
    in the second-level cache.
    """
    at = tl.program_id(0)
    run = at // (together * blocks)
    rest = at % (together * blocks)
    return blocks - 1 - rest // together, run * together + rest % together


@triton.jit
def read(tensor, batch, head, first, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Rows `first` onwards of one head; zeros past the end."""
    return tensor.load([batch, head, first, 0]).reshape(ROWS, WIDTH)


@triton.jit
def inside(rows, size, D: tl.constexpr, WIDTH: tl.constexpr):
    """Which entries of a tile of rows exist."""
    mask = (rows < size)[:, None]
    if D < WIDTH:
        mask = mask & (tl.arange(0, WIDTH) < D)[None, :]
    return mask


@triton.jit
def fetch(tensor, strides, batch, head, rows, size, D: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of one head, which has `size` of them; zeros outside."""
    start = batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]
    places = rows.to(tl.int64)[:, None] * strides[2] + tl.arange(0, WIDTH)[None, :]
    return tl.load(tensor + start + places, mask=inside(rows, size, D, WIDTH), other=0.0)


@triton.jit
def triangle(SIZE: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Ones that sum a row of flags from each place to the end of the row."""
    at = tl.arange(0, SIZE)
    if TRANSPOSED:
        return (at[:, None] <= at[None, :]).to(tl.float16)
    return (at[:, None] >= at[None, :]).to(tl.float16)


@triton.jit
def flags(above, PACKED: tl.constexpr):
    """1 where `above` is above 0, else 0, as half-precision factors of a matmul.

    Packed: two at once, rounded to bfloat16, which keeps the sign of every normal float32.
    """
    if PACKED:
        return tl.inline_asm_elementwise(
            """
            {
                .reg .b32 pair, zero;
                cvt.rn.bf16x2.f32 pair, $2, $1;
                mov.b32 zero, 0;
                set.gt.bf16x2.bf16x2 pair, pair, zero;
                and.b32 $0, pair, 0x3C003C00;
            }
            """,
            "=r,r,r",
            [above],
            dtype=tl.float16,
            is_pure=True,
            pack=2,
        )
    return (above > 0).to(tl.float16)


@triton.jit
def first_column(counts, SIZE: tl.constexpr):
    """Column 0: a sum over bits, of which all but one are zero."""
    bits = counts.to(tl.int32, bitcast=True)
    here = tl.arange(0, SIZE)[None, :] == 0
    return tl.sum(tl.where(here, bits, 0), 1).to(tl.float32, bitcast=True)


@triton.jit
def slope_of(gate, lowest):
    """The gate in powers of two, kept finite."""
    return tl.maximum(gate.to(tl.float32), lowest) * 1.4426950408889634


@triton.jit
def exponent(scores, scale, counts, nearer, slope, shift, FIXED: tl.constexpr):
    """Logits in powers of two less `shift`; distance is `counts` in the tile plus `nearer`.

    The shorter form is safe only where gates are bounded: under an enormous one it would take the
    difference of two enormous numbers.
    """
    if FIXED:
        return scores * scale + (counts * slope + (slope * nearer - shift))
    return scores * scale + ((counts + nearer) * slope - shift)


@triton.jit
def noted(nearer, slope, shift, FIXED: tl.constexpr):
    """What the first half of the backward pass leaves to the second for a row and a tile of keys.

    The part of `exponent` that is the same in all of the tile, or where that is not safe `nearer`.
    """
    if FIXED:
        return slope * nearer - shift
    return slope * 0.0 + nearer
