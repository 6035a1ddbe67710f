"""Accuracy by length, on a ladder of multiples of the training length, for any callable.

::

    rows = evaluate(my_model, "composite(modulus=10)")        # tokens (b, t) -> logits (b, t, c)

Every model is asked about the same fresh sequences, so two of them can be compared one by one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from outlast.errors import bad_value, short_of_memory
from outlast.evaluation.accuracy import exact_by_part
from outlast.registry import tasks
from outlast.runs.records import ResultRow
from outlast.runs.spec import LADDER, SEQUENCES
from outlast.specs import Spec
from outlast.streams import stream
from outlast.tasks import Batch, Task

log = logging.getLogger(__name__)

#: tokens in a batch, to begin with; halved for as long as memory does not suffice
TOKENS = {"cpu": 2**17, "cuda": 2**20}
#: by part of the task
Shares = dict[str, float]


def rungs(task: Task, ladder: Sequence[float]) -> list[tuple[float, int]]:
    """Multiples and the lengths they stand for, rounded to what the task can make."""
    pairs = []
    if not ladder:
        raise bad_value("lengths", "", "at least one multiple of the training length")
    for multiple in ladder:
        if not 0 < multiple < math.inf:
            raise bad_value("lengths", multiple, "multiples of the training length, such as 1 3 10")
        length = round(task.lengths[1] * multiple / task.multiple) * task.multiple
        pairs.append((float(multiple), max(length, task.shortest)))
    return pairs


def evaluate(
    model: Callable[[Tensor], Any],
    task: str | Spec | Task,
    ladder: Sequence[float] = LADDER,
    sequences: int = SEQUENCES,
    device: torch.device | str = "cpu",
    ceiling: int | None = None,
) -> list[ResultRow]:
    """Rows of accuracy by length for a model: a module or any function of tokens.

    The model may return logits or a tuple that begins with them. `ceiling` is the most tokens it
    can take (by default the model's own, if it has one); longer rungs are marked as not testable.
    Each row holds the length, its multiple, the tokens, ``exact`` (share of sequences with every
    answer right, by part and ``joint``) and ``answers`` (share of answers right, by part).
    """

    def stacked(tokens: Tensor) -> Tensor:
        out = model(tokens)
        logits: Tensor = out[0] if isinstance(out, tuple) else getattr(out, "logits", out)
        return logits[None]

    if ceiling is None and isinstance(limit := getattr(model, "ceiling", None), int):
        ceiling = limit
    return evaluate_stack(stacked, 1, task, ladder, sequences, device, ceiling)[0]


@torch.no_grad()
def evaluate_stack(
    model: Callable[[Tensor], Tensor],
    seeds: int,
    task: str | Spec | Task,
    ladder: Sequence[float] = LADDER,
    sequences: int = SEQUENCES,
    device: torch.device | str = "cpu",
    ceiling: int | None = None,
    variants: bool = True,
    stream_name: str = "evaluate",
) -> list[list[ResultRow]]:
    """`evaluate` for S seeds at once: tokens (b, t) to logits (S, b, t, c); rows for each seed."""
    trained = task if isinstance(task, Task) else tasks.build(task)
    if sequences < 1:
        raise bad_value("sequences", sequences, "a whole number >= 1")
    versions: list[tuple[str | None, Task]] = [(None, trained)]
    if variants:
        versions += [(name, tasks.build(spec)) for name, spec in trained.variants.items()]
    tables: list[list[ResultRow]] = [[] for _ in range(seeds)]
    for variant, version in versions:
        for multiple, length in rungs(version, ladder):
            reason = out_of_reach(version, length, ceiling)
            accuracies: list[tuple[Shares, Shares]] = []
            if reason is None:
                generator = stream(torch.device(device), stream_name, length)
                batch = version.sample(length, sequences, generator)
                accuracies = _measure_in_batches(model, seeds, version, batch)
            for seed, table in enumerate(tables):
                row: ResultRow = {
                    "variant": variant,
                    "length": length,
                    "multiple": multiple,
                    "tokens": version.tokens(length),
                    "exact": accuracies[seed][0] if accuracies else None,
                    "answers": accuracies[seed][1] if accuracies else None,
                }
                if reason is not None:
                    row["reason"] = reason
                table.append(row)
    return tables


def out_of_reach(task: Task, length: int, ceiling: int | None) -> str | None:
    """Why a length cannot be tested, if so; `ceiling` is the most tokens of the model."""
    if task.ceiling is not None and length > task.ceiling:
        return f"the task ends at length {task.ceiling}"
    if ceiling is not None and task.tokens(length) > ceiling:
        return f"the model ends at {ceiling} tokens, this takes {task.tokens(length)}"
    return None


def _measure_in_batches(
    model: Callable[[Tensor], Tensor], seeds: int, task: Task, batch: Batch
) -> list[tuple[Shares, Shares]]:
    """`_measure` with batches as large as memory allows."""
    sequences, tokens = batch.inputs.shape
    budget = TOKENS.get(batch.inputs.device.type, TOKENS["cpu"])
    size = max(1, min(sequences, budget // (tokens * seeds)))
    while True:
        try:
            return _measure(model, seeds, task, batch, size)
        except (MemoryError, RuntimeError) as error:
            if size == 1 or not short_of_memory(error):
                raise
            size = max(1, size // 2)
            log.info("memory is short at %d tokens: trying batches of %d", tokens, size)


def _measure(
    model: Callable[[Tensor], Tensor], seeds: int, task: Task, batch: Batch, size: int
) -> list[tuple[Shares, Shares]]:
    """For each seed the share of sequences entirely right and of answers right, by part."""
    names, parts, device = ("joint", *task.parts), task.parts, batch.inputs.device
    sequences = batch.inputs.shape[0]
    exact = torch.zeros(seeds, len(names), dtype=torch.long, device=device)
    right = torch.zeros(seeds, len(parts), dtype=torch.long, device=device)
    for rows in torch.arange(sequences, device=device).split(size):
        piece = batch.rows(rows)
        for seed, logits in enumerate(model(piece.inputs)):
            whole, answers = exact_by_part(logits, piece, task)
            exact[seed] += torch.stack([whole[n].sum() for n in names])
            right[seed] += torch.stack([answers[p] for p in parts])
    asked = torch.stack([(batch.part == i).sum() for i in range(len(parts))])
    # one look at the device for all seeds
    counts = torch.cat([exact, right, asked.expand(seeds, -1)], 1).tolist()
    first, last = len(names), len(names) + len(parts)
    return [
        (
            {name: count / sequences for name, count in zip(names, row[:first], strict=True)},
            {
                part: count / max(1, total)
                for part, count, total in zip(parts, row[first:last], row[last:], strict=True)
            },
        )
        for row in counts
    ]
