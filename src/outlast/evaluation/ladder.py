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
from outlast.specs import Spec
from outlast.streams import stream
from outlast.tasks import Batch, Task

log = logging.getLogger(__name__)

LADDER = (1.0, 1.2, 2.0, 3.0, 4.0, 10.0)
SEQUENCES = 2048
#: tokens in a batch, to begin with; halved for as long as memory does not suffice
TOKENS = {"cpu": 2**17, "cuda": 2**20}
Row = dict[str, Any]


def rungs(task: Task, ladder: Sequence[float]) -> list[tuple[float, int]]:
    """Multiples and the lengths they stand for, rounded to what the task can make."""
    found = []
    if not ladder:
        raise bad_value("lengths", "", "at least one multiple of the training length")
    for multiple in ladder:
        if not 0 < multiple < math.inf:
            raise bad_value("lengths", multiple, "multiples of the training length, such as 1 3 10")
        length = round(task.lengths[1] * multiple / task.multiple) * task.multiple
        found.append((float(multiple), max(length, task.shortest)))
    return found


def evaluate(
    model: Callable[[Tensor], Any],
    task: str | Spec | Task,
    ladder: Sequence[float] = LADDER,
    sequences: int = SEQUENCES,
    device: torch.device | str = "cpu",
    ceiling: int | None = None,
) -> list[Row]:
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

    own = getattr(model, "ceiling", None)
    limit = own if ceiling is None and isinstance(own, int) else ceiling
    return evaluate_stack(stacked, 1, task, ladder, sequences, device, limit)[0]


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
) -> list[list[Row]]:
    """`evaluate` for S seeds at once: tokens (b, t) to logits (S, b, t, c); rows for each seed."""
    made = task if isinstance(task, Task) else tasks.build(task)
    if sequences < 1:
        raise bad_value("sequences", sequences, "a whole number >= 1")
    others = made.variants.items() if variants else ()
    versions: list[tuple[str | None, Task]] = [(None, made)]
    versions += [(name, tasks.build(spec)) for name, spec in others]
    rows: list[list[Row]] = [[] for _ in range(seeds)]
    for variant, version in versions:
        for multiple, length in rungs(version, ladder):
            reason = out_of_reach(version, length, ceiling)
            found = (
                [{"exact": None, "answers": None, "reason": reason}] * seeds
                if reason
                else _rung(
                    model,
                    seeds,
                    version,
                    version.sample(
                        length, sequences, stream(torch.device(device), stream_name, length)
                    ),
                )
            )
            where = {
                "variant": variant,
                "length": length,
                "multiple": multiple,
                "tokens": version.tokens(length),
            }
            for own, accuracy in zip(rows, found, strict=True):
                own.append(where | accuracy)
    return rows


def out_of_reach(task: Task, length: int, ceiling: int | None) -> str | None:
    """Why a length cannot be tested, if so; `ceiling` is the most tokens of the model."""
    if task.ceiling is not None and length > task.ceiling:
        return f"the task ends at length {task.ceiling}"
    if ceiling is not None and task.tokens(length) > ceiling:
        return f"the model ends at {ceiling} tokens, this takes {task.tokens(length)}"
    return None


def _rung(model: Callable[[Tensor], Tensor], seeds: int, task: Task, batch: Batch) -> list[Row]:
    """One length: all its sequences, in batches as large as memory allows."""
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
) -> list[Row]:
    names, parts, device = ("joint", *task.parts), task.parts, batch.inputs.device
    sequences = batch.inputs.shape[0]
    exact = torch.zeros(seeds, len(names), dtype=torch.long, device=device)
    right = torch.zeros(seeds, len(parts), dtype=torch.long, device=device)
    for rows in torch.arange(sequences, device=device).split(size):
        some = batch.rows(rows)
        for seed, logits in enumerate(model(some.inputs)):
            whole, answers = exact_by_part(logits, some, task)
            exact[seed] += torch.stack([whole[n].sum() for n in names])
            right[seed] += torch.stack([answers[p] for p in parts])
    asked = torch.stack([(batch.part == i).sum() for i in range(len(parts))])
    # one look at the device for all seeds
    counts = torch.cat([exact, right, asked.expand(seeds, -1)], 1).tolist()
    n, p = len(names), len(parts)
    return [
        {
            "exact": {name: own[i] / sequences for i, name in enumerate(names)},
            "answers": {part: own[n + i] / max(1, own[n + p + i]) for i, part in enumerate(parts)},
        }
        for own in counts
    ]
