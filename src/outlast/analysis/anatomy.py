"""Failure anatomy: which part of a model broke, for each wrong answer.

Every asked answer is `right` or gets one cause. The first that holds counts. The causes, and the
order in which they are tried, are our own choice.

Any answer that needs a state:

- `unread`: The probe cannot be trusted, so nobody knows whether the state is right. At the training
  length it reads fewer states than halfway from the share of the most frequent state to all of
  them. (Halfway is our choice.) A probe that reads at random is right by chance, in one of m cases
  for m states that are equally frequent.

An answer that needs the state alone:

- `state`: The state that a probe reads at the answer is wrong.
- `output`: The probe reads the right state, and the answer is still wrong.

An answer that must be recalled, from its source, the token that holds it:

- `state`: The answer also needs a state, and the probe reads a wrong one. If the answer is the
  state at the source, the probe reads there, else at the answer. If the answer is the token at the
  source, it needs no state.
- `no_attention`: The model has no attention that could look the answer up.
- `unfocused`: The attention of the retrieving heads is spread. None of them gives any token three
  times the weight that it has if all of the n tokens so far weigh the same, 1 / n. (If that is more
  than a half, a half is enough. Both numbers are our choice.) What has the largest weight then says
  nothing.
- `key`: The retrieving heads look elsewhere. The token with their largest total weight is neither
  the source nor the token they look at when they retrieve.
- `diluted`: They look at the right place, but too weakly. The answer becomes right if their
  attention is made hard, with a weight of 1 on the token they look at when they retrieve.
- `output`: They look at the right place, and hard attention does not mend the answer. But the right
  value arrives: a probe reads the due answer from what enters the output layer.
- `value`: They look at the right place, and hard attention does not mend the answer. No probe reads
  the due answer from what enters the output layer.

The **retrieving heads** are found at the training length. The best head is the one with the largest
mean weight on the source, or on the token after it, to which a recurrence may carry the value. The
token before the source cannot hold the value, as attention is causal. Other heads of the same
layer with at least half of that weight retrieve too. Heads that look elsewhere on purpose are left
alone. In a test of hard attention all answers of a sequence get it at once.

The **probe of states** reads the hidden state of a recurrence, in a model without one the input of
the head. It is fitted at training lengths, on the kinds of tokens at which it is asked. Of several
recurrences the one that reads best at the training length counts, the last one among equals.

The **probe of answers** reads what enters the output layer where an answer must be recalled. It is
fitted at training lengths on the due answers. Only a probe that can be trusted counts, by the rule
of `unread`: in a model that never retrieves there is nothing to read. The probe is linear, and
learns the form in which values arrive. So a value that always arrives in the wrong form, such as
with its sign changed, is a right value to it, and the output layer is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from outlast.analysis.instruments import Instruments, asked_tokens, prepare, state_tokens
from outlast.analysis.probe import FIT_SEQUENCES, Place
from outlast.analysis.retrieval import Attended, HardAttention, Retriever
from outlast.analysis.scoring import check_answers
from outlast.analysis.sequences import LADDER, SEQUENCES, Row, blocks, draw_rungs
from outlast.analysis.sharpness import recalled
from outlast.analysis.watching import Watched, hooked, require_ours, watch
from outlast.evaluation.accuracy import right_answers
from outlast.models.model import Model
from outlast.tasks import Batch, Task
from outlast.tasks.truth import ABSENT


class Cause(IntEnum):
    """What an answer is: right, or wrong for one of these reasons."""

    RIGHT = 0
    STATE = 1
    OUTPUT = 2
    UNREAD = 3
    NO_ATTENTION = 4
    UNFOCUSED = 5
    KEY = 6
    DILUTED = 7
    VALUE = 8


#: as tables have them
CAUSES = tuple(cause.name.lower() for cause in Cause)
#: sequences that are named for each cause
EXAMPLES = 8


@dataclass(frozen=True)
class Anatomy:
    """The causes by length, and sequences to look at.

    Args:
        rows: The table of `anatomy`.
        examples: A few answers of each cause: `multiple`, `length`, `part`, `cause`, and the
            numbers of the sequence (`row`) and of the token (`token`) among those of `draw_rungs`.
        retriever: The retrieving heads; None if there is no attention or nothing to recall.
        probe: Where the state was read; None if no answer needs one.
    """

    rows: list[Row] = field(default_factory=list)
    examples: list[Row] = field(default_factory=list)
    retriever: Retriever | None = None
    probe: Place | None = None


def anatomy(
    model: Model,
    task: Task,
    ladder: Sequence[float] = LADDER,
    sequences: int = SEQUENCES,
    fit_sequences: int = FIT_SEQUENCES,
) -> list[Row]:
    """The share of each cause among the answers of a part, by length; shares add up to 1.

    Each row holds the `multiple`, the `length`, the `part`, the `cause` (`right` is one of them),
    its `share` of the answers and their number, the `count`. `probe` says how far to trust the
    cause `state`: how often the probe reads the right state where the answer is right. It is None
    if no answer of the part needs a state, or none is right. `probe_trained` is the share of states
    that the probe reads at the training length, which decides on `unread`; None if no answer of the
    part needs a state. `retriever_weight` says how far to
    trust the causes from `unfocused` on: the mean weight that the best retrieving head gives, at
    the training length, to the token it looks at. If it is about 1 / n, no head retrieves. It is
    None if no answer of the part is recalled, or there is no attention.

    Args:
        model: A model of ours.
        task: A task whose `truth` has a state or a source for every answer.
        ladder: Multiples of the training length.
        sequences: Sequences of each length.
        fit_sequences: Sequences that the probe is fitted on.
    """
    return dissect(model, task, ladder, sequences, fit_sequences).rows


def dissect(
    model: Model,
    task: Task,
    ladder: Sequence[float] = LADDER,
    sequences: int = SEQUENCES,
    fit_sequences: int = FIT_SEQUENCES,
    instruments: Instruments | None = None,
) -> Anatomy:
    """`anatomy`, with sequences to look at for each cause. The arguments are those of `anatomy`.

    `instruments` are those of the model, if they are prepared already.
    """
    check_answers(task, ladder, sequences)
    require_ours(model)
    if instruments is None:
        instruments = prepare(model, task, sequences, fit_sequences)
    probe = instruments.state_probe
    causes_by_length = Anatomy(retriever=instruments.retriever, probe=probe and probe.place)
    for rung in draw_rungs(model, task, ladder, sequences):
        verdicts = [judge(model, task, block, instruments) for block in blocks(rung.batch)]
        causes = torch.cat([verdict.causes for verdict in verdicts])
        misread = torch.cat([verdict.misread for verdict in verdicts])
        source = recalled(task, rung.batch)
        for part in task.asked:
            of_part = rung.batch.part == task.parts.index(part)
            common: Row = {"multiple": rung.multiple, "length": rung.length, "part": part}
            weight = instruments.retriever and instruments.retriever.weight
            trained = probe and probe.accuracy
            trust: Row = {
                "probe_trained": trained if (misread[of_part] >= 0).any() else None,
                "retriever_weight": weight if (source[of_part] >= 0).any() else None,
            }
            causes_by_length.rows.extend(_rows(common, causes[of_part], misread[of_part], trust))
            causes_by_length.examples.extend(_examples(common, causes, of_part))
    return causes_by_length


class Verdict(NamedTuple):
    """For each token (batch, tokens).

    Args:
        causes: The number of the cause, -1 where nothing is asked.
        misread: 1 where the probe reads a wrong state, 0 a right one, -1 where none is needed.
        attended: The token that the retrieving heads look at most, -1 where nothing is recalled.
    """

    causes: Tensor
    misread: Tensor
    attended: Tensor


def judge(model: Model, task: Task, batch: Batch, instruments: Instruments) -> Verdict:
    """The causes of a block of sequences."""
    source, retriever = recalled(task, batch), instruments.retriever
    hooks = {} if retriever is None else {retriever.layer: Attended(source, retriever)}
    with hooked(dict(hooks), model):
        seen = watch(model, batch.inputs, streams=instruments.read_streams)
    right, _ = right_answers(seen.logits, batch, task)
    misread = _misread(seen, task, batch, source, instruments)
    causes, attended = torch.full_like(source, Cause.OUTPUT), torch.full_like(source, ABSENT)
    if retriever is None:
        causes = causes.where(source < 0, Cause.NO_ATTENTION)
    else:
        retrieval = _retrieval(model, task, batch, right, hooks[retriever.layer])
        causes, attended = causes.where(source < 0, retrieval), hooks[retriever.layer].tokens
    causes = causes.where(misread != 1, Cause.STATE)
    if instruments.state_probe is not None and not instruments.state_probe.is_trusted:
        causes = causes.where(misread < 0, Cause.UNREAD)
    causes = causes.where(~right, Cause.RIGHT).where(asked_tokens(task, batch), ABSENT)
    arrived = _arrived(seen, batch, causes == Cause.VALUE, instruments)
    return Verdict(causes.where(~arrived, Cause.OUTPUT), misread, attended)


def _retrieval(model: Model, task: Task, batch: Batch, right: Tensor, attended: Attended) -> Tensor:
    """The causes of recalled answers that are wrong, if their states are right."""
    on_source, focused = attended.on_source(), attended.focused
    mended = on_source & focused & ~right
    numbers = mended.any(1).nonzero()[:, 0]
    if len(numbers):
        rows, retriever = batch.rows(numbers), attended.retriever
        with hooked({retriever.layer: HardAttention(attended.source[numbers], retriever)}, model):
            logits = watch(model, rows.inputs, streams=False).logits
        mended[numbers] &= right_answers(logits, rows, task)[0]
    causes = torch.where(on_source, torch.where(mended, Cause.DILUTED, Cause.VALUE), Cause.KEY)
    return causes.where(focused, Cause.UNFOCUSED)


def _arrived(seen: Watched, batch: Batch, wrong: Tensor, instruments: Instruments) -> Tensor:
    """At which of these wrong answers (batch, tokens) the due one enters the output layer."""
    arrived = torch.zeros_like(wrong)
    if wrong.any() and instruments.answer_probe.is_trusted:
        reader = instruments.answer_probe
        arrived[wrong] = (
            reader.probe.predict(reader.place.read(seen)[wrong]) == batch.targets[wrong]
        )
    return arrived


def _misread(
    seen: Watched, task: Task, batch: Batch, source: Tensor, instruments: Instruments
) -> Tensor:
    """`Verdict.misread`."""
    reader = instruments.state_probe
    if reader is None:
        return torch.full_like(source, ABSENT)
    tokens = state_tokens(task, batch, source, instruments.needed)
    at = tokens.clamp_min(0)
    read = reader.probe.predict(reader.place.read(seen)).gather(1, at)
    state = task.truths(batch.inputs).state.gather(1, at)
    return (read != state).long().where(tokens >= 0, ABSENT)


def _rows(common: Row, causes: Tensor, misread: Tensor, trust: Row) -> list[Row]:
    """The rows of one part from the cause of each of its answers (answers,)."""
    counts = torch.bincount(causes, minlength=len(CAUSES)).tolist()
    trusted = (causes == Cause.RIGHT) & (misread >= 0)
    probe = float((misread[trusted] == 0).double().mean()) if trusted.any() else None
    total = max(1, len(causes))
    return [
        {**common, "cause": cause, "share": count / total, "count": count, "probe": probe, **trust}
        for cause, count in zip(CAUSES, counts, strict=True)
    ]


def _examples(common: Row, causes: Tensor, of_part: Tensor) -> list[Row]:
    """The first few answers of each cause, by the numbers of their sequence and token."""
    return [
        {**common, "cause": cause, "row": row, "token": token}
        for number, cause in enumerate(CAUSES)
        for row, token in ((causes == number) & of_part).nonzero()[:EXAMPLES].tolist()
    ]
