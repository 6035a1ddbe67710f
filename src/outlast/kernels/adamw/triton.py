"""AdamW fused: one pass for the gradient's norm, one for the update in place.

The kernels read, beside the tables of `reference`::

    controls [S, pathways, 4]   learns (0 or 1); rate x decay; rate / (1 - beta1^t); 1 - beta2^t

The first pass leaves a few sums of squares for each seed. Every program of the second adds them up
again in the same order, so clipping by a seed's norm needs no pass between.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outlast.kernels.adamw.reference import BETA1, BETA2, EPSILON, Columns

BLOCK, MOST_PARTS = 1024, 256  # weights at a time; sums of squares for a seed
CONTROLS = 4


@triton.jit
def _controls(controls, way, CONTROLS: tl.constexpr, BLOCK: tl.constexpr):
    """The four controls of each weight's pathway; of the same one, as nearly always, read once."""
    most = tl.max(way, 0)
    if tl.min(way, 0) == most:
        controls_at, learns = controls + most * CONTROLS, most >= 0
        active = tl.zeros((BLOCK,), tl.float32) + tl.load(controls_at, mask=learns, other=0.0)
        decay = tl.zeros((BLOCK,), tl.float32) + tl.load(controls_at + 1, mask=learns, other=0.0)
        pace = tl.zeros((BLOCK,), tl.float32) + tl.load(controls_at + 2, mask=learns, other=0.0)
        correction = tl.zeros((BLOCK,), tl.float32) + tl.load(
            controls_at + 3, mask=learns, other=1.0
        )
    else:
        each = controls + way * CONTROLS
        active = tl.load(each, mask=way >= 0, other=0.0)
        decay = tl.load(each + 1, mask=way >= 0, other=0.0)
        pace = tl.load(each + 2, mask=way >= 0, other=0.0)
        correction = tl.load(each + 3, mask=way >= 0, other=1.0)
    return active, decay, pace, correction


@triton.jit
def _adamw_squares(
    gradient,
    controls,
    pathway,
    sums,
    width,
    turns,
    PATHWAYS: tl.constexpr,
    CONTROLS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    seed = tl.program_id(1).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for turn in range(turns):
        at = (turn * tl.num_programs(0) + tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
        inside = at < width
        way = tl.load(pathway + at, mask=inside, other=-1)
        g = tl.load(gradient + seed * width + at, mask=inside, other=0.0)
        controls_at = controls + (seed * PATHWAYS + way) * CONTROLS
        g = tl.where(
            tl.load(controls_at, mask=way >= 0, other=0.0) > 0, g, 0.0
        )  # idle: even if not finite
        total += g * g
    tl.store(sums + seed * tl.num_programs(0) + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def _adamw_update(
    gradient,
    weights,
    first,
    second,
    controls,
    pathway,
    decays,
    sums,
    width,
    parts,
    clip,
    new1,
    new2,
    epsilon,
    PATHWAYS: tl.constexpr,
    CONTROLS: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):
    seed = tl.program_id(1).to(tl.int64)
    part = tl.arange(0, PARTS)
    squares = tl.load(sums + seed * parts + part, mask=part < parts, other=0.0)
    share = tl.div_rn(tl.load(clip + seed), tl.sqrt_rn(tl.sum(squares, 0)) + 1e-6)
    share = tl.where(share > 1, 1.0, share)  # a share that is not a number stays one

    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    way = tl.load(pathway + at, mask=inside, other=-1)
    controls_at = controls + seed * PATHWAYS * CONTROLS
    active, decay, pace, correction = _controls(controls_at, way, CONTROLS, BLOCK)

    here = seed * width + at
    g = tl.load(gradient + here, mask=inside, other=0.0)
    g = tl.where(active > 0, g * share, 0.0)
    m = tl.load(first + here, mask=inside, other=0.0)
    v = tl.load(second + here, mask=inside, other=0.0)
    w = tl.load(weights + here, mask=inside, other=0.0)
    m += new1 * active * (g - m)
    v += new2 * active * (g * g - v)
    w *= 1 - decay * tl.load(decays + at, mask=inside, other=0.0)
    w -= tl.div_rn(pace * m, tl.sqrt_rn(tl.div_rn(v, correction)) + epsilon)
    tl.store(first + here, m, mask=inside)
    tl.store(second + here, v, mask=inside)
    tl.store(weights + here, w, mask=inside)


def update(
    weights: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    counts: Tensor,
    rates: Tensor,
    active: Tensor,
    clip: Tensor,
    weight_decay: Tensor,
    columns: Columns,
) -> None:
    """As `reference.update`; the gradient stays as it is."""
    counts += active
    count, rate = counts.clamp_min(1), rates * active
    decay = rate * weight_decay[:, None]
    controls = torch.stack([active, decay, rate / (1 - BETA1**count), 1 - BETA2**count], -1)
    seeds, width = weights.shape
    blocks = triton.cdiv(width, BLOCK)
    parts = min(blocks, MOST_PARTS)
    sums = weights.new_empty(seeds, parts, dtype=torch.float32)
    sizes = {"PATHWAYS": controls.shape[1], "CONTROLS": CONTROLS, "BLOCK": BLOCK}
    _adamw_squares[(parts, seeds)](
        gradient, controls, columns.pathway, sums, width, triton.cdiv(blocks, parts), **sizes
    )
    _adamw_update[(blocks, seeds)](
        gradient,
        weights,
        first,
        second,
        controls,
        columns.pathway,
        columns.decays,
        sums,
        width,
        parts,
        clip,
        1 - BETA1,  # here: in float32 the second would lose half its digits
        1 - BETA2,
        EPSILON,
        PARTS=triton.next_power_of_2(parts),
        **sizes,
    )
