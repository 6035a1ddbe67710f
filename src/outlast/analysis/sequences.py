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
from outlast.machine import GIB, short_of
from outlast.models.model import Model
from outlast.runs.analyses import Row as Row
from outlast.streams import stream
from outlast.tasks import Batch, Task
from outlast.tasks.base import TOKEN

log = logging.getLogger(__name__)


class NothingToSeeError(SpecError):
    """A model or a task that has nothing of what an analysis looks at."""


class NotJoinedError(NothingToSeeError):
    """A model whose attention has not joined yet."""


def not_joined(whose: str) -> NotJoinedError:
    """The error for attention that cannot be looked at yet."""
    words = "has not joined yet: its gate is 0, as before the switch of DAT"
    return NotJoinedError(f"the attention of {whose} {words}")


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
#: tokens in a block; a GPU reads many sequences in the time of few
TOKENS = {"cpu": 2**15, "cuda": 2**17}
#: bytes of a token in the tables of its truth: state, source, key, and a copy of its row
TRUTH = 4 * 8
#: bytes of a token in what is made of these tables: labels, causes, what drawing a sequence takes
DERIVED = 6 * 8
#: streams of the model's width that a layer at work takes, such as the gates of a recurrence
AT_WORK = 12


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


def memory_needed(
    model: Model,
    task: Task,
    lengths: Sequence[int],
    sequences: int,
    device: torch.device,
    fit_sequences: int = 0,
) -> int:
    """About how many bytes an analysis of these lengths takes in one process.

    These are the sequences of the longest, with what is derived of them, the truth of all lengths,
    which stays for the next seed, and the streams of one block. The same is counted for the
    `fit_sequences` of the training length that a probe is fitted on. They may be there beside those
    of a test: `anatomy` fits its second probe where the first answer needs it.
    """
    tokens = [task.tokens(length) for length in lengths]
    longest, fitted = max(tokens, default=0), task.tokens(task.lengths[1])
    tables = sequences * (longest * (TOKEN + DERIVED) + sum(tokens) * TRUTH)
    tables += fit_sequences * fitted * (TOKEN + DERIVED + TRUTH)
    streams = 2 * len(model.sublayers()) + 1 + AT_WORK
    floats = streams * model.embedding.embedding_dim + task.classes
    passes = ((sequences, longest), (fit_sequences, fitted))
    block = max(_tokens_at_once(number, each, device) for number, each in passes)
    return tables + 4 * floats * block


def _tokens_at_once(sequences: int, tokens: int, device: torch.device) -> int:
    """The tokens of the largest of `blocks`."""
    return min(sequences * tokens, max(tokens, TOKENS.get(device.type, TOKENS["cpu"])))


def require_memory(needed: int, device: torch.device) -> None:
    """Refuse what takes more bytes than are free."""
    free = short_of(needed, device)
    if free is not None:
        raise MemoryError(f"about {needed / GIB:.3g} GiB are needed, {free / GIB:.3g} are free")


def blocks(batch: Batch, tokens: int | None = None) -> Iterator[Batch]:
    """The batch in blocks of at most this many tokens (`TOKENS`), at least one sequence each."""
    rows, length = batch.inputs.shape
    device = batch.inputs.device
    tokens = TOKENS.get(device.type, TOKENS["cpu"]) if tokens is None else tokens
    for index in torch.arange(rows, device=device).split(max(1, tokens // length)):
        yield batch.rows(index)
