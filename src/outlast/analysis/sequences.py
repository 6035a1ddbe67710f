"""The sequences that analyses look at: those of `evaluate`, in blocks that fit into memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn

from outlast.errors import SpecError, bad_value
from outlast.evaluation.ladder import check_memory, out_of_reach, rungs
from outlast.runs.analyses import Row as Row
from outlast.streams import stream
from outlast.tasks import Batch, Task

log = logging.getLogger(__name__)


class NothingToSeeError(SpecError):
    """A model or a task that has nothing of what an analysis looks at."""


def nothing_to_see(field: str, value: object, expected: str) -> NothingToSeeError:
    """The error for a model or task without what an analysis looks at."""
    return NothingToSeeError(str(bad_value(field, value, expected)))


def check_finite(model: nn.Module, known_as: str | None = None) -> None:
    """Refuse a model whose weights are not finite. An error calls it `known_as`."""
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            whose = known_as or getattr(model, "layout", type(model).__name__)
            raise NothingToSeeError(f"the weights of {whose} are not finite: {name} has NaN or inf")


def without_nan(row: Row) -> Row:
    """A row with None for NaN and inf, which no table holds."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


#: multiples of the training length, and sequences of each, if nobody says
LADDER, SEQUENCES = (1.0, 3.0, 10.0), 256
#: tokens in a block
TOKENS = 2**15


class Rung(NamedTuple):
    """The sequences of one length, and the length as a multiple of that of training."""

    multiple: float
    length: int
    batch: Batch


def draw_rungs(
    model: nn.Module,
    task: Task,
    ladder: Sequence[float] = LADDER,
    sequences: int = SEQUENCES,
) -> Iterator[Rung]:
    """The sequences of each length, on the model's device. Lengths out of reach are left out.

    They are the sequences that `evaluate` draws for this number of sequences. Before the first is
    drawn, a length whose sequences alone are more than the free memory is an error. So is a model
    whose weights are not finite.
    """
    check_finite(model)
    device = next(model.parameters()).device
    ceiling = getattr(model, "ceiling", None)
    within_reach = []
    for multiple, length in rungs(task, ladder):
        reason = out_of_reach(task, length, ceiling)
        if reason is not None:
            log.debug("length %d (%g x) is left out: %s", length, multiple, reason)
            continue
        check_memory(task, length, multiple, sequences, device)
        within_reach.append((multiple, length))
    for multiple, length in within_reach:
        generator = stream(device, "evaluate", length)
        yield Rung(multiple, length, task.test_batch(length, sequences, generator))


def blocks(batch: Batch, tokens: int = TOKENS) -> Iterator[Batch]:
    """The batch in blocks of at most this many tokens, at least one sequence each."""
    rows, length = batch.inputs.shape
    for index in torch.arange(rows, device=batch.inputs.device).split(max(1, tokens // length)):
        yield batch.rows(index)
