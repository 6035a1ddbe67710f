"""Pathway ablation: how accurate a model is without one of its parts, by length and part.

::

    rows = pathway_ablation(model, task)

The column `ablation` says what was changed:

==================  ==============================================================================
`whole`             nothing
`attention off`     no attention layer adds anything
`recurrence off`    no recurrence adds anything; short convolutions stay
`layer off`         one layer adds nothing, be it attention, recurrence, convolution or MLP: the
                    column `layer`
`head off`          the weights of one head are 0: the columns `layer` and `head`
`window`            attention sees the last keys alone, as many as a training sequence has tokens
`hard`              attention puts all weight on the largest
`uniform`           attention puts the same weight on each key so far
`positions drawn`   tokens have random increasing positions
`items shuffled`    the items before the questions stand in another order
==================  ==============================================================================

What does not apply is left out: a pathway that the model has not, or whose gate is 0; drawn
positions if no scheme of the model uses positions, or if its ceiling leaves none to draw from;
shuffled items if the task has none (`Task.shuffled`).

A model that is not one of ours has no windows, hard or uniform weights and drawn positions, and its
MLPs are not found. A part that is off puts out 0: all attention modules, all recurrences, one
module, or one head. So a model without a residual stream around the part gets nothing past it.
Recurrences are those of torch, and in a model of `transformers` the module that convolves in a
layer that the config calls recurrent. Heads are those of `torch.nn.MultiheadAttention`, and of
modules with a linear `o_proj` or `out_proj`.

Positions are drawn from the range that the model was trained with (`random_positions`). Otherwise,
or if that range is too short, the range is twice the number of tokens. All sequences of a length
share a draw. Both are our choice.

Sequences with shuffled items are as likely as before, so a sound model is as accurate on them. (In
`regular` they are not: there fewer rows are words of the language.) The column `unchanged` then
says whether it gives the same answers. Answers are those of the new order; in a `chained` composite
they change. Auxiliary parts, such as running sums, are not counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from outlast.analysis.foreign import foreign_attention, no_names
from outlast.analysis.interventions import (
    CHANGES,
    Within,
    closed,
    head_silent,
    output_projection,
    silent,
)
from outlast.analysis.replay import Replay
from outlast.analysis.scoring import Tally, check_answers
from outlast.analysis.sequences import LADDER, SEQUENCES, Row, Rung, blocks, draw_rungs
from outlast.analysis.watching import attention_layers, hooked, layers
from outlast.arguments import as_whole
from outlast.evaluation.outputs import eval_mode, read_logits
from outlast.methods.delay.discovery import find_recurrence
from outlast.mixers.attention.look import Hook
from outlast.mixers.randomness import draw_positions
from outlast.models.model import Model, Sublayer
from outlast.streams import stream, stream_seed
from outlast.tasks import IGNORE, Batch, Task

log = logging.getLogger(__name__)


class Ablation(NamedTuple):
    """A change of a model, or of what it reads.

    Args:
        name: What is changed, as the table says it.
        change: Makes what changes the model for as long as it is entered.
        changed: The sublayers that it changes; none: they are not known, or the input is changed.
        layer: The layer that is changed, if it is one.
        head: The head of it that is changed, if it is one.
        batch: Other sequences than those of the rung.
        positions: Those of the tokens, (tokens,), if they are not the model's own.
    """

    name: str
    change: Callable[[], AbstractContextManager[object]] = nullcontext
    changed: Sequence[Sublayer] = ()
    layer: str | None = None
    head: int | None = None
    batch: Batch | None = None
    positions: Tensor | None = None


def pathway_ablation(
    model: nn.Module,
    task: Task,
    ladder: Sequence[float] = LADDER,
    sequences: int = SEQUENCES,
    window: int | None = None,
    attention: Sequence[str] | None = None,
) -> list[Row]:
    """Accuracy whole and without each part: a row for each rung, ablation and part of the task.

    Args:
        model: A model of ours, or any module whose attention `outlast.delay` finds.
        task: A task with answers that are right or wrong.
        ladder: Multiples of the training length.
        sequences: Sequences of each length, those of `evaluate`.
        window: How many keys `window` leaves; by default the tokens of a training sequence.
        attention: Of a module that is not ours: names or patterns of its attention modules, such as
            ``*.attn``; by default they are found.
    """
    check_answers(task, ladder, sequences)
    foreign: dict[str, nn.Module] = {}
    if isinstance(model, Model):
        no_names(model, attention)
    else:
        foreign = foreign_attention(model, attention)
    window = task.tokens(task.lengths[1]) if window is None else as_whole("window", window, 1)
    rows: list[Row] = []
    with eval_mode(model), torch.no_grad():
        for rung in draw_rungs(model, task, ladder, sequences):
            columns = {"multiple": rung.multiple, "length": rung.length}
            ablations = list(_ablations(model, task, rung, window, foreign))
            for ablation, tally in zip(
                ablations, _tally(model, task, rung, ablations), strict=True
            ):
                named = {"ablation": ablation.name, "layer": ablation.layer, "head": ablation.head}
                rows += tally.rows(**columns, **named)
    return rows


def _tally(model: nn.Module, task: Task, rung: Rung, ablations: Sequence[Ablation]) -> list[Tally]:
    """What is right with each ablation. The first one is none: its answers are the whole ones."""
    tallies = [Tally(task, None if a.batch is None else task.asked) for a in ablations]
    for several in zip(*(blocks(a.batch or rung.batch) for a in ablations), strict=True):
        if isinstance(model, Model):
            replay = Replay(model, several[0].inputs)
            whole = tallies[0].add(replay.logits, several[0])
        else:
            whole = tallies[0].add(read_logits(model(several[0].inputs), model)[0], several[0])
        for ablation, tally, block in zip(ablations[1:], tallies[1:], several[1:], strict=True):
            if isinstance(model, Model):
                with replay.until(ablation.changed, _outputs(ablation, replay)), ablation.change():
                    logits = model(block.inputs, positions=ablation.positions)[0]
            else:
                with ablation.change():
                    logits = read_logits(model(block.inputs), model)[0]
            tally.add(logits, block, whole)
    return tallies


def _outputs(ablation: Ablation, replay: Replay) -> dict[Sublayer, Tensor]:
    """What changed sublayers put out, if that follows from the pass of the whole model."""
    if ablation.head is None:
        return {}
    return {s: replay.without_head(s, ablation.head) for s in ablation.changed}


def _ablations(
    model: nn.Module, task: Task, rung: Rung, window: int, foreign: dict[str, nn.Module]
) -> Iterator[Ablation]:
    """What is changed; `foreign` is the attention of a model that is not ours."""
    yield Ablation("whole")
    if not isinstance(model, Model):
        yield from _foreign_ablations(model, foreign)
        yield from _other_items(task, rung)
        return
    by_name = {name: sublayer for name, sublayer in layers(model) if sublayer.gate_mode != "off"}
    attending = [s for s in by_name.values() if s.pathway == "attention"]
    recurring = [s for s in by_name.values() if s.mixer.holds_state]
    for name, several in (("attention off", attending), ("recurrence off", recurring)):
        if several:
            yield Ablation(name, partial(closed, several), several)
    for layer, sublayer in by_name.items():
        yield Ablation("layer off", partial(closed, [sublayer]), [sublayer], layer)
    attention = attention_layers(model)
    for layer, mixer in attention.items():
        for head in range(mixer.heads):
            yield Ablation("head off", nullcontext, [by_name[layer]], layer, head)
    changes: dict[str, Hook] = {"window": Within(window), **CHANGES}
    for name, hook in changes.items():
        if attention:
            change = partial(hooked, dict.fromkeys(attention, hook), model)
            yield Ablation(name, change, [by_name[layer] for layer in attention])
    yield from _other_inputs(model, task, rung)


def _foreign_ablations(model: nn.Module, attention: dict[str, nn.Module]) -> Iterator[Ablation]:
    """The ablations of the parts that are found in a model that is not ours."""
    recurrence = find_recurrence(model)
    for name, modules in (("attention off", attention), ("recurrence off", recurrence)):
        if modules:
            yield Ablation(name, partial(silent, model, modules))
    for layer, module in {**attention, **recurrence}.items():
        yield Ablation("layer off", partial(silent, model, {layer: module}), layer=layer)
    for layer, module in attention.items():
        projection, heads = output_projection(module)
        for head in range(heads):
            change = partial(head_silent, projection, heads, head)
            yield Ablation("head off", change, (), layer, head)


def _other_inputs(model: Model, task: Task, rung: Rung) -> Iterator[Ablation]:
    """The ablations that change what the model reads."""
    positions = _positions(model, rung.batch.inputs)
    if positions is None:
        log.debug("length %d: there are no positions to draw", rung.length)
    else:
        yield Ablation("positions drawn", positions=positions)
    yield from _other_items(task, rung)


def _other_items(task: Task, rung: Rung) -> Iterator[Ablation]:
    shuffled = _shuffled(task, rung)
    if shuffled is None:
        log.debug("%s has no items to shuffle", task.name)
    else:
        yield Ablation("items shuffled", batch=shuffled)


def _positions(model: Model, inputs: Tensor) -> Tensor | None:
    """Random increasing positions (tokens,), if they matter and there are any to draw from."""
    tokens = inputs.shape[1]
    span = model.span if model.span > tokens else 2 * tokens
    span = span if model.ceiling is None else min(span, model.ceiling)
    in_use = any(mixer.uses_positions for mixer in attention_layers(model).values())
    if not in_use or span <= tokens:
        return None
    key = torch.tensor(stream_seed("ablation positions", tokens))
    return draw_positions(key, tokens, span).to(inputs.device)


def _shuffled(task: Task, rung: Rung) -> Batch | None:
    """The sequences of a rung with their items shuffled, and the answers to what is asked."""
    batch, device = rung.batch, rung.batch.inputs.device
    inputs = task.shuffled(batch.inputs, stream(device, "shuffled items", rung.length))
    if inputs is None:
        return None
    asked = torch.zeros_like(batch.part, dtype=torch.bool)
    for part in task.asked:
        asked |= batch.part == task.parts.index(part)
    solved = [[IGNORE if a is None else a for a in task.solve(row)] for row in inputs.tolist()]
    targets = torch.tensor(solved, device=device).masked_fill(~asked, IGNORE)
    return Batch(inputs, targets, batch.part.masked_fill(~asked, -1))
