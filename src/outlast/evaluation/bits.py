"""Bits per byte of text: by part, and by how many tokens stand before.

A test sequence ends with a window of bytes. These count, by part and together as `all`. The tokens
before them are context. Bits by position are of all tokens of a sequence, so they are of other
bytes at each position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.evaluation.chunks import Portion, Stack, read
from outlast.evaluation.outputs import check_shape
from outlast.runs.records import ALL
from outlast.tasks import IGNORE, Task
from outlast.tasks.base import TextBatch


@dataclass(frozen=True)
class Bits:
    """One seed at one length: bits per byte by part and by position, and the share of NaN.

    A part without bytes is left out, and so is one whose bits are not finite. `positions` has the
    last position of a range of them; each range begins after the one before it.
    """

    bits: dict[str, float]
    bytes: dict[str, int]
    positions: dict[str, float]
    nan: float


def token_losses(logits: Tensor, batch: TextBatch, outputs: int) -> Tensor:
    """The negative log-likelihood of each target in nats, (batch, tokens); 0 where there is none.

    logits (batch, tokens, outputs or more): the distribution is over all that there are.
    """
    check_shape(logits, batch, outputs)
    flat, targets = logits.flatten(0, 1).float(), batch.targets.flatten()
    losses = F.cross_entropy(flat, targets, ignore_index=IGNORE, reduction="none")
    return losses.view_as(batch.targets)


def measure_bits(
    model: Stack, seeds: int, task: Task, batch: TextBatch, portion: Portion
) -> list[Bits]:
    """Bits per byte of every seed, a portion at a time."""
    device, parts = batch.inputs.device, len(task.test_parts)
    sequences, tokens = batch.inputs.shape
    # a model of bytes alone has no output for the boundary; it needs none if none is due
    outputs = int(batch.targets.max()) + 1
    by_part = torch.zeros(seeds, parts, dtype=torch.float64, device=device)
    by_place = torch.zeros(seeds, tokens, dtype=torch.float64, device=device)
    nan = torch.zeros(seeds, dtype=torch.float64, device=device)
    for rows in torch.arange(sequences, device=device).split(portion.sequences):
        piece = batch.rows(rows)
        assert isinstance(piece, TextBatch)
        masks = [piece.part == index for index in range(parts)]
        of_parts: list[list[Tensor]] = [[] for _ in range(seeds)]
        for part, logits_of_all in read(model, piece, portion.chunk):
            assert isinstance(part, TextBatch)
            for seed, logits in enumerate(logits_of_all):
                of_parts[seed].append(token_losses(logits, part, outputs))
        for seed, tables in enumerate(of_parts):
            losses = torch.cat(tables, 1).double()
            nan[seed] += losses.isnan().sum()
            by_place[seed] += losses.sum(0)
            by_part[seed] += torch.stack([losses.where(mask, 0.0).sum() for mask in masks])
    sizes = torch.stack([batch.sizes[batch.part == index].sum() for index in range(parts)])
    asked = int((batch.part >= 0).sum())
    place_sizes = batch.sizes.sum(0)
    return [
        Bits(
            *_by_part(task.test_parts, part_sums, sizes.tolist()),
            _by_position(place_sums, place_sizes.tolist()),
            broken / max(1, asked),
        )
        for part_sums, place_sums, broken in zip(
            by_part.tolist(), by_place.tolist(), nan.tolist(), strict=True
        )
    ]


def _by_part(
    names: tuple[str, ...], sums: list[float], sizes: list[int]
) -> tuple[dict[str, float], dict[str, int]]:
    """Bits per byte and bytes of `all` and of each part; the first part is context."""
    nats = {ALL: sum(sums[1:]), **dict(zip(names[1:], sums[1:], strict=True))}
    counts = {ALL: sum(sizes[1:]), **dict(zip(names[1:], sizes[1:], strict=True))}
    counts = {name: count for name, count in counts.items() if count}
    bits = {name: nats[name] / math.log(2) / count for name, count in counts.items()}
    return {name: value for name, value in bits.items() if math.isfinite(value)}, counts


def _by_position(sums: list[float], sizes: list[int]) -> dict[str, float]:
    """Bits per byte of positions 1, 2, 3 to 4, 5 to 8 and so on, by the last of each."""
    bits, begin, end = {}, 0, 1
    while begin < len(sums):
        count = sum(sizes[begin:end])
        value = sum(sums[begin:end]) / math.log(2) / count if count else math.nan
        if math.isfinite(value):
            bits[str(min(end, len(sums)))] = value
        begin, end = end, 2 * end
    return bits
