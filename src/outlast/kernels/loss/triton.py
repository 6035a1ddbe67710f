"""Losses by part fused: logits are read where something is asked, and their gradient written once.

A program takes a span of one seed's tokens, a tile at a time, whole rows of logits in registers,
and writes its sums of loss, right answers and tokens for each part; those of all programs are
added up afterwards, without atomics: the same every time. Backward the softmax is computed again.
Tiles where nothing is asked, as in the padding, are passed over.

Shapes are those of `reference`. Up to 4,096 classes. Rows of logits may lie apart, as those of a
padded table do (see `kernels.row_alignment`), and those of the gradient do in half precision.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outlast.kernels.row_alignment import empty_aligned

MOST_CLASSES = 4096
TILE = 2048  # numbers in a tile


@triton.jit
def _rows(row, rows, seed, targets, part, ignore):
    """Where these tokens lie, which of them ask something, for what, and their part."""
    inside = row < rows
    at = seed * rows + row
    target = tl.load(targets + at, mask=inside, other=ignore).to(tl.int32)
    token_part = tl.load(part + at, mask=inside, other=-1).to(tl.int32)
    return at, inside, inside & (target != ignore), target, token_part


@triton.jit
def _logits(logits, at, asked, classes, APART: tl.constexpr, C: tl.constexpr):
    """The logits of tokens that ask something, in float32; columns past the classes have none."""
    here = asked[:, None] & (classes < C)[None, :]
    z = tl.load(logits + at[:, None] * APART + classes[None, :], mask=here, other=0.0)
    return tl.where((classes < C)[None, :], z.to(tl.float32), float("-inf"))


@triton.jit
def _loss_forward(
    logits,
    targets,
    part,
    sums,
    rows,
    ignore,
    APART: tl.constexpr,
    C: tl.constexpr,
    CLASSES: tl.constexpr,
    PARTS: tl.constexpr,
    TALL: tl.constexpr,
    SPAN: tl.constexpr,
    ALL_PARTS: tl.constexpr,
):
    seed = tl.program_id(1).to(tl.int64)
    classes, indices = tl.arange(0, CLASSES), tl.arange(0, ALL_PARTS)
    losses = tl.zeros((ALL_PARTS,), tl.float32)
    rights = tl.zeros((ALL_PARTS,), tl.float32)
    counts = tl.zeros((ALL_PARTS,), tl.float32)
    for first in range(0, SPAN, TALL):
        row = tl.program_id(0) * SPAN + first + tl.arange(0, TALL)
        at, _, asked, target, token_part = _rows(row, rows, seed, targets, part, ignore)
        mine = token_part[:, None] == indices[None, :]
        counts += tl.sum(mine.to(tl.float32), 0)
        if tl.max(asked.to(tl.int32), 0) > 0:
            z = _logits(logits, at, asked, classes, APART, C)
            most = tl.max(z, 1)
            total = most + tl.log(tl.sum(tl.exp(z - most[:, None]), 1))
            known = asked & (target >= 0) & (target < C)
            wanted = tl.load(logits + at * APART + target, mask=known, other=0.0).to(tl.float32)
            best = tl.min(tl.where(z == most[:, None], classes[None, :], CLASSES), 1)
            loss = tl.where(asked, total - wanted, 0.0)
            right = (asked & (best == target)).to(tl.float32)
            losses += tl.sum(tl.where(mine, loss[:, None], 0.0), 0)
            rights += tl.sum(tl.where(mine, right[:, None], 0.0), 0)
    # (seeds, programs, 3, PARTS)
    out = sums + (seed * tl.num_programs(0) + tl.program_id(0)) * 3 * PARTS + indices
    tl.store(out, losses, mask=indices < PARTS)
    tl.store(out + PARTS, rights, mask=indices < PARTS)
    tl.store(out + 2 * PARTS, counts, mask=indices < PARTS)


@triton.jit
def _loss_backward(
    shares,
    logits,
    targets,
    part,
    d_logits,
    rows,
    ignore,
    APART: tl.constexpr,
    C: tl.constexpr,
    CLASSES: tl.constexpr,
    PARTS: tl.constexpr,
    TALL: tl.constexpr,
    SPAN: tl.constexpr,
    WIDE: tl.constexpr,
):
    seed = tl.program_id(1).to(tl.int64)
    classes = tl.arange(0, CLASSES)
    for first in range(0, SPAN, TALL):
        row = tl.program_id(0) * SPAN + first + tl.arange(0, TALL)
        at, inside, asked, target, token_part = _rows(row, rows, seed, targets, part, ignore)
        asked = asked & (token_part >= 0) & (token_part < PARTS)
        # spare columns too: they are those of classes with no chance at all, so they get zeros
        within = inside[:, None] & (classes < WIDE)[None, :]
        place = d_logits + at[:, None] * WIDE + classes[None, :]
        if tl.max(asked.to(tl.int32), 0) > 0:
            share = tl.load(shares + seed * PARTS + token_part, mask=asked, other=0.0)
            z = _logits(logits, at, asked, classes, APART, C)
            weight = tl.exp(z - tl.max(z, 1)[:, None])
            weight *= (1 / tl.sum(weight, 1))[:, None]
            weight -= (classes[None, :] == target[:, None]).to(tl.float32)
            d = tl.where(asked[:, None], weight * share[:, None], 0.0)
            tl.store(place, d.to(d_logits.dtype.element_ty), mask=within)
        else:
            nothing = tl.zeros((TALL, CLASSES), d_logits.dtype.element_ty)
            tl.store(place, nothing, mask=within)


def fits(logits: Tensor) -> bool:
    """Whether a row of logits fits into a program."""
    return logits.shape[-1] <= MOST_CLASSES


def _side_by_side(logits: Tensor) -> Tensor:
    """Logits as (rows, classes), all rows equally far apart; copied only if they lie otherwise."""
    rows = logits.reshape(-1, logits.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _options(classes: int, columns: int, parts: int) -> dict[str, int]:
    width = triton.next_power_of_2(columns)
    tall = min(128, max(1, TILE // width))
    return {
        "C": classes,
        "CLASSES": width,
        "PARTS": parts,
        "TALL": tall,
        "SPAN": max(16, 4 * tall),
        # a row of up to TILE is one warp's alone: its sums need not pass from one to another
        "num_warps": width // TILE if tall == 1 else 4,
    }


def forward(
    logits: Tensor, targets: Tensor, part: Tensor, parts: int, ignore: int
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.forward`, in float32 whatever the type of the logits."""
    seeds, batch, tokens, classes = logits.shape
    options = _options(classes, classes, parts)
    programs = triton.cdiv(batch * tokens, options["SPAN"])
    sums = logits.new_empty(seeds, programs, 3, parts, dtype=torch.float32)
    logits = _side_by_side(logits)
    _loss_forward[(programs, seeds)](
        logits,
        targets.contiguous(),
        part.contiguous(),
        sums,
        batch * tokens,
        ignore,
        APART=logits.stride(0),
        ALL_PARTS=triton.next_power_of_2(parts),
        **options,
    )
    losses, rights, counts = sums.sum(1).unbind(1)
    counts = counts.clamp_min(1)
    return losses / counts, rights / counts, counts


def backward(
    d_losses: Tensor, counts: Tensor, logits: Tensor, targets: Tensor, part: Tensor, ignore: int
) -> Tensor:
    """As `reference.backward`, in float32 whatever the type of the logits."""
    seeds, batch, tokens, classes = logits.shape
    d_logits, logits = empty_aligned(logits), _side_by_side(logits)
    options = _options(classes, d_logits.stride(2), counts.shape[1])
    _loss_backward[(triton.cdiv(batch * tokens, options["SPAN"]), seeds)](
        (d_losses / counts).contiguous(),
        logits,
        targets.contiguous(),
        part.contiguous(),
        d_logits,
        batch * tokens,
        ignore,
        APART=logits.stride(0),
        WIDE=d_logits.stride(2),
        **options,
    )
    return d_logits
