"""The loss of held-out sequences while a run trains, for methods that want it.

The sequences depend on the task and the length alone. So all seeds see the same ones at all times,
and a resumed run measures what a run that was not stopped measures. Nothing is learned from them.
They are drawn anew; a task of text draws them from the text that it trains on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from outlast.evaluation.ladder import TOKENS, rungs
from outlast.kernels.loss import part_losses
from outlast.methods.base import WORST_LOSS, HeldOutLosses
from outlast.streams import stream
from outlast.tasks import IGNORE, Task

#: sequences of each length: a block of 50 steps of a batch of 128 sees a hundred times as many
SEQUENCES = 64


@torch.no_grad()
def held_out_losses(
    predict: Callable[[Tensor], Tensor],
    seeds: int,
    task: Task,
    multiples: Sequence[float],
    device: torch.device,
) -> list[HeldOutLosses]:
    """For each seed and multiple of the training length, the mean loss by part.

    `predict` takes tokens (b, t) and returns logits (S, b, t, outputs).
    """
    tables: list[dict[float, dict[str, float]]] = [{} for _ in range(seeds)]
    parts = len(task.parts)
    for multiple, length in rungs(task, multiples):
        batch = task.sample(length, SEQUENCES, stream(device, "held out", length))
        size = max(1, TOKENS.get(device.type, TOKENS["cpu"]) // (batch.inputs.shape[1] * seeds))
        sums = torch.zeros(seeds, parts, device=device)
        counts = torch.zeros(parts, device=device)
        for rows in torch.arange(SEQUENCES, device=device).split(size):
            piece = batch.rows(rows)
            logits = predict(piece.inputs)
            targets, part = (t.expand(seeds, -1, -1) for t in (piece.targets, piece.part))
            count = torch.stack([(piece.part == index).sum() for index in range(parts)])
            sums += part_losses(logits, targets, part, parts, IGNORE)[0] * count
            counts += count
        means = (sums / counts.clamp_min(1)).nan_to_num(WORST_LOSS, WORST_LOSS).tolist()
        for table, row in zip(tables, means, strict=True):
            table[multiple] = dict(zip(task.parts, row, strict=True))
    return list(tables)
