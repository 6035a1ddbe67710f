"""Accuracy, or bits per byte of text, by length, on a ladder of multiples of the training length.

::

    rows = evaluate(my_model, "composite(modulus=10)")        # tokens (b, t) -> logits (b, t, c)

Every model is asked about the same fresh sequences, so two of them can be compared one by one. A
task of text asks about the same bytes at every length.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from outlast.arguments import as_whole, shown
from outlast.errors import OutlastError, bad_value, short_of_memory
from outlast.evaluation.accuracy import count_correct, distances, right_answers
from outlast.evaluation.bits import Bits, measure_bits
from outlast.evaluation.chunks import MOST as MOST_CHUNK
from outlast.evaluation.chunks import Alone, Portion, Stack, choose_chunk, read
from outlast.evaluation.outputs import PLAIN, check_shape, eval_mode
from outlast.evaluation.remarks import delay_remark, nan_remarks
from outlast.machine import GIB, short_of
from outlast.registry import tasks
from outlast.runs.records import ResultRow, is_tested
from outlast.runs.spec import LADDER, SEQUENCES, TEXT_SEQUENCES
from outlast.specs import Spec
from outlast.streams import stream
from outlast.tasks import Batch, Task
from outlast.tasks.base import TOKEN, TextBatch
from outlast.tasks.sampling import read_device

log = logging.getLogger(__name__)

#: tokens in a batch, to begin with; halved for as long as memory does not suffice
TOKENS = {"cpu": 2**17, "cuda": 2**20}
#: the largest multiple of the training length; far more than memory holds
MOST = 1e9
#: the most sequences of a length; far more than memory holds
MOST_SEQUENCES = 2**63 - 1


@dataclass(frozen=True)
class Accuracy:
    """One seed at one length: shares of what is right by part, and the share of NaN answers.

    `distance` is the mean distance to the right distribution by asked part, if the target is one.
    """

    exact: dict[str, float]
    answers: dict[str, float]
    nan: float
    distance: dict[str, float]


def rungs(task: Task, ladder: Sequence[float]) -> list[tuple[float, int]]:
    """Multiples and the lengths they stand for, rounded to what the task can make."""
    pairs = []
    for multiple in as_ladder("lengths", ladder):
        length = round(task.lengths[1] * multiple / task.multiple) * task.multiple
        pairs.append((float(multiple), max(length, task.shortest)))
    return pairs


def as_ladder(field: str, ladder: object) -> list[float]:
    """Multiples that stand for lengths as plain numbers; `field` is what the user calls them."""
    error = bad_value(field, shown(ladder), "a list of multiples, such as (1, 3, 10)")
    if isinstance(ladder, bytes) or not isinstance(ladder, Collection):
        raise error
    try:
        multiples = list(ladder)
    except (TypeError, RuntimeError):  # an array without an axis, a nested tensor
        raise error from None
    if any(isinstance(m, bool) or not isinstance(m, Real) for m in multiples):
        raise error
    if not multiples:
        raise bad_value(field, "", "at least one multiple of the training length")
    for multiple in multiples:
        if not 0 < multiple <= MOST:
            accepted = f"multiples of the training length, such as 1 3 10, up to {MOST:g}"
            raise bad_value(field, multiple, accepted)
    return [m if isinstance(m, int) else float(m) for m in multiples]


def evaluate(
    model: Callable[[Tensor], Any],
    task: str | Spec | Task,
    ladder: Sequence[float] = LADDER,
    sequences: int | None = None,
    device: torch.device | str = "cpu",
    ceiling: int | None = None,
    chunk: int | None = None,
) -> list[ResultRow]:
    """Rows of results by length for a model: a module or any function of tokens.

    The model may return logits, a tuple that begins with them, or an object or dict with
    ``logits``; they may be a tensor or a numpy array. Anything else is an error. A module is
    measured in eval mode and put back into the modes that it and its submodules were in.

    Each row holds the length, its multiple, the tokens, ``exact`` (share of sequences with every
    answer right, by part and ``joint``) and ``answers`` (share of answers right, by part). An
    answer whose logits are NaN or all -inf is wrong. The row then has ``nan``, the share of such
    answers, and a warning is logged. If the model does not return a plain tensor, the row has
    ``logits_from``. It says what was taken as the logits, such as "the first item of a tuple".
    A model that was saved while `outlast.delay` held its attention back is measured with attention
    on, and a warning is logged.

    If the target is a distribution (`Task.support`), any answer in its support is right. The row
    then has ``distance``, the mean total variation distance to it by asked part: 0 is the best.

    A task of text has no answers that are right. Its rows have ``bits`` instead: bits per byte, for
    ``all`` bytes that count and by part (lower is better), ``bytes``, how many there are, and
    ``positions``, bits per byte by the number of tokens seen.

    A model with ``in_chunks(tokens, size)``, such as a model of this library, reads long sequences
    in chunks, with its state carried along. Any other model reads them whole, and that is logged.

    Args:
        model: Takes tokens (batch, tokens) and returns logits (batch, tokens, classes or more).
        task: A task or its line.
        ladder: Multiples of the training length.
        sequences: Sequences for each length, by default as many as a run is tested on: 2,048, or
            256 of text. Those of text depend on this number.
        device: Where the sequences are made; the model should be there too.
        ceiling: The most tokens that the model can take, by default the model's own, if it has
            one. Longer rungs are marked as not testable.
        chunk: The most tokens of a sequence that are read at a time. By default sequences of up to
            4,096 tokens are read whole, and longer ones in chunks that fit in memory.
    """
    if not callable(model) or isinstance(model, type):
        accepted = "a module, or a function from tokens (batch, tokens) to logits"
        raise bad_value("model", shown(model), accepted)
    if ceiling is None and isinstance(limit := getattr(model, "ceiling", None), int):
        ceiling = limit
    elif ceiling is not None:
        ceiling = as_whole("ceiling", ceiling, 1)
    stacked = Alone(model)
    task, ladder = _read_task(task), as_ladder("ladder", ladder)
    if sequences is None:
        sequences = default_sequences(task)
    sequences, device = as_whole("sequences", sequences, 1, MOST_SEQUENCES), read_device(device)
    if remark := delay_remark(model):
        log.warning(remark)
    with eval_mode(model):
        rows = evaluate_stack(stacked, 1, task, ladder, sequences, device, ceiling, chunk=chunk)[0]
    for row in rows:
        if is_tested(row) and stacked.sources not in ([], [PLAIN]):
            row["logits_from"] = "; ".join(stacked.sources)
    for remark in nan_remarks(rows):
        log.warning(remark)
    return rows


def default_sequences(task: Task) -> int:
    """How many sequences of each length are tested, if nobody says."""
    return TEXT_SEQUENCES if task.measure == "bits" else SEQUENCES


def _read_task(task: object) -> Task:
    if isinstance(task, Task):
        return task
    if not isinstance(task, str | Spec):
        raise bad_value("task", shown(task), "a task or its line, such as parity(length=40)")
    built: Task = tasks.build(task)
    return built


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
    skip_too_large: bool = False,
    on_length: Callable[[str], None] | None = None,
    chunk: int | None = None,
) -> list[list[ResultRow]]:
    """`evaluate` for S seeds at once: tokens (b, t) to logits (S, b, t, c); rows for each seed.

    `skip_too_large`: a length at which not even one sequence fits in memory is marked as not
    testable; else the error is raised. `on_length` is told, in words, which length comes next.
    `chunk` is the most tokens of a sequence that are read at a time, as in `evaluate`.
    """
    chunk = None if chunk is None else as_whole("chunk", chunk, 1, MOST_CHUNK)
    trained = _read_task(task)
    if sequences < 1:
        raise bad_value("sequences", sequences, "a whole number >= 1")
    versions: list[tuple[str | None, Task]] = [(None, trained)]
    if variants:
        versions += [(name, tasks.build(spec)) for name, spec in trained.variants.items()]
    tables: list[list[ResultRow]] = [[] for _ in range(seeds)]
    for variant, version in versions:
        for multiple, length in rungs(version, ladder):
            reason = out_of_reach(version, length, ceiling)
            measured: Sequence[Accuracy | Bits] = []
            if reason is None:
                if on_length is not None:
                    test = f", {variant}" if variant else ""
                    on_length(f"length {length:,} ({multiple:g} x{test})")
                check_memory(version, length, multiple, sequences, torch.device(device))
                generator = stream(torch.device(device), stream_name, length)
                batch = version.test_batch(length, sequences, generator)
                try:
                    measured = _measure_in_portions(model, seeds, version, batch, chunk)
                except (MemoryError, RuntimeError) as error:
                    if not (skip_too_large and short_of_memory(error)):
                        raise
                    reason = (
                        f"the memory of {device} does not suffice for one sequence of "
                        f"{version.tokens(length):,} tokens"
                    )
            for seed, table in enumerate(tables):
                row: ResultRow = {
                    "variant": variant,
                    "length": length,
                    "multiple": multiple,
                    "tokens": version.tokens(length),
                    "exact": None,
                    "answers": None,
                }
                if measured:
                    _add(row, measured[seed])
                if reason is not None:
                    row["reason"] = reason
                table.append(row)
    return tables


def _add(row: ResultRow, measured: Accuracy | Bits) -> None:
    """Put what was measured into a row."""
    if isinstance(measured, Accuracy):
        row["exact"], row["answers"] = measured.exact, measured.answers
        if measured.distance:
            row["distance"] = measured.distance
    else:
        row["bits"], row["bytes"] = measured.bits, measured.bytes
        row["positions"] = measured.positions
    if measured.nan:
        row["nan"] = measured.nan


def out_of_reach(task: Task, length: int, ceiling: int | None) -> str | None:
    """Why a length cannot be tested, if so; `ceiling` is the most tokens of the model."""
    if task.ceiling is not None and length > task.ceiling:
        why = f": {task.longer}" if task.longer else ""
        return f"the task ends at length {task.ceiling}{why}"
    if ceiling is not None and task.tokens(length) > ceiling:
        return f"the model ends at {ceiling} tokens, this takes {task.tokens(length)}"
    return None


def check_memory(
    task: Task, length: int, multiple: float, sequences: int, device: torch.device
) -> None:
    """Refuse a length whose sequences alone are more than all that is free."""
    needed = TOKEN * sequences * task.tokens(length)
    free = short_of(needed, device)
    if free is not None:
        raise OutlastError(
            f"sequences={sequences} of length {length} ({multiple:g} x) take {needed / GIB:.3g} "
            f"GiB: expected no more than the {free / GIB:.3g} GiB that {device} has free; take "
            f"fewer sequences or shorter lengths"
        )


def _measure_in_portions(
    model: Stack, seeds: int, task: Task, batch: Batch, chunk: int | None
) -> Sequence[Accuracy | Bits]:
    """What the task measures, with as much at once as memory allows."""
    (sequences, tokens), device = batch.inputs.shape, batch.inputs.device
    size = max(1, min(sequences, TOKENS.get(device.type, TOKENS["cpu"]) // (tokens * seeds)))
    chosen = choose_chunk(model, tokens, size * seeds, device, chunk)
    portion = Portion(size, chosen, flexible=chunk is None)
    while True:
        try:
            if isinstance(batch, TextBatch):
                return measure_bits(model, seeds, task, batch, portion)
            return _measure(model, seeds, task, batch, portion)
        except (MemoryError, RuntimeError) as error:
            smaller = portion.smaller()
            if smaller is None or not short_of_memory(error):
                raise
            portion = smaller
            log.info("memory is short at %d tokens: trying %s", tokens, portion)


def _measure(
    model: Stack, seeds: int, task: Task, batch: Batch, portion: Portion
) -> list[Accuracy]:
    """For each seed the share of sequences entirely right and of answers right, by part."""
    names, parts, device = ("joint", *task.parts), task.parts, batch.inputs.device
    sequences = batch.inputs.shape[0]
    exact = torch.zeros(seeds, len(names), dtype=torch.long, device=device)
    right = torch.zeros(seeds, len(parts), dtype=torch.long, device=device)
    nan = torch.zeros(seeds, 1, dtype=torch.long, device=device)
    distance = torch.zeros(seeds, len(parts), dtype=torch.float64, device=device)
    support = None
    for rows in torch.arange(sequences, device=device).split(portion.sequences):
        piece = batch.rows(rows)
        answered: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(seeds)]
        start = 0
        for part, logits_of_all in read(model, piece, portion.chunk):
            stop = start + part.inputs.shape[1]
            support = task.support(piece.inputs, start, stop)
            for seed, logits in enumerate(logits_of_all):
                check_shape(logits, part, task.classes)
                answered[seed].append(right_answers(logits, part, task, support))
                if support is not None:
                    distance[seed] += _sum_by_part(distances(logits, support), part, len(parts))
            start = stop
        for seed, answers in enumerate(answered):
            is_right, is_nan = (torch.cat(tables, 1) for tables in zip(*answers, strict=True))
            correct = count_correct(is_right, is_nan, piece, task)
            exact[seed] += torch.stack([correct.exact[n].sum() for n in names])
            right[seed] += torch.stack([correct.answers[p] for p in parts])
            nan[seed] += correct.nan
    asked = torch.stack([(batch.part == i).sum() for i in range(len(parts))])
    # one look at the device for all seeds
    counts = torch.cat([nan, exact, right, asked.expand(seeds, -1)], 1).tolist()
    far_of_all: list[list[float]] = [[]] * seeds if support is None else distance.tolist()
    first, last = 1 + len(names), 1 + len(names) + len(parts)
    return [
        Accuracy(
            {name: count / sequences for name, count in zip(names, row[1:first], strict=True)},
            {
                part: count / max(1, total)
                for part, count, total in zip(parts, row[first:last], row[last:], strict=True)
            },
            row[0] / max(1, sum(row[last:])),
            _asked_means(task, far, row[last:]) if far else {},
        )
        for row, far in zip(counts, far_of_all, strict=True)
    ]


def _sum_by_part(values: Tensor, batch: Batch, parts: int) -> Tensor:
    """The sums of (batch, tokens) over the tokens of each part."""
    return torch.stack([(values * (batch.part == index)).sum() for index in range(parts)]).double()


def _asked_means(task: Task, sums: Sequence[float], counts: Sequence[int]) -> dict[str, float]:
    """Sums by part as means, of the parts that a test asks for."""
    means = {p: s / max(1, c) for p, s, c in zip(task.parts, sums, counts, strict=True)}
    return {part: means[part] for part in task.asked}
