"""Sharpness: how much of its attention a head puts on the token that holds the answer.

Only answers that must be recalled are looked at, those with a source in the task's `truth`. Softmax
over n keys, with a margin m between the score of the right key and equal scores of all others, puts
1 / (1 + (n - 1) exp(-m)) on the right key. So the margin must grow as log n, or the weight falls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from outlast.analysis.foreign import foreign_attention, no_names, watch_foreign
from outlast.analysis.scoring import check_answers
from outlast.analysis.sequences import (
    LADDER,
    SEQUENCES,
    NothingToSeeError,
    Row,
    blocks,
    draw_rungs,
    without_nan,
)
from outlast.analysis.watching import (
    attention_layers,
    first_query,
    hooked,
    is_ours,
    no_attention,
    watch,
)
from outlast.mixers.attention.attention import Attention
from outlast.mixers.attention.look import AttentionBlock, Watcher
from outlast.models.model import Model
from outlast.tasks import Batch, Task
from outlast.tasks.truth import ABSENT

#: what is measured of each answer and head
MEASURES = (
    "keys", "entropy", "weight", "weight_pair", "weight_after", "margin", "law", "above", "kept",
)  # fmt: skip
#: the most weights of a head that a model that is not ours makes at once
FOREIGN_WEIGHTS = 2**24


def sharpness(
    model: nn.Module,
    task: Task,
    ladder: Sequence[float] = LADDER,
    sequences: int = SEQUENCES,
    attention: Sequence[str] | None = None,
) -> list[Row]:
    """What each head attends to where an answer must be recalled, by length, layer and head.

    Each row holds the `multiple`, the `length`, the `layer`, the `head` (its number, from 0) and
    the `count` of answers. The other columns are means over answers, if nothing else is said:

    - `keys`: The median number of keys that the answers see, n.
    - `entropy`: Of the attention row, in nats. A row that does not add up to 1 is divided by its
      sum first.
    - `weight`: On the source, the token that holds the answer.
    - `weight_pair`: On the source or the token before it, which holds its key.
    - `weight_after`: On the token after the source, to which a recurrence may carry the answer.
    - `margin`: The median of the score of the source less the largest other score. It is None for
      a scheme that makes its own weights, and where no score is left of one of the two.
    - `law`: The weight that softmax would give for the margin of each answer if all others had
      equal scores. The others are seldom equal, so `weight` is at or above it. It is None for
      weights that are no softmax of scores.
    - `needed`: The margin that gives a weight of one half by this law, log(n - 1).
    - `above`: The number of keys whose weight is above 1 / (10 n).
    - `kept`: The number of keys whose weight is above 0.

    A model that is not ours shows its weights alone, so `margin` and `law` are None. Its attention
    is taken for causal, and `layer` is the name of the module.

    Args:
        model: A model with attention, or another module as `watch_foreign` takes it.
        task: A task whose `truth` has sources.
        ladder: Multiples of the training length.
        sequences: Sequences of each length.
        attention: Of a module that is not ours: names or patterns of its attention modules, such as
            ``*.attn``; by default they are found.
    """
    check_answers(task, ladder, sequences)
    if is_ours(model):
        require_attention(cast(Model, model))
        no_names(model, attention)
    else:
        foreign_attention(model, attention)
    rows: list[Row] = []
    for rung in draw_rungs(model, task, ladder, sequences):
        if is_ours(model):
            tables = measure(cast(Model, model), task, rung.batch)
        else:
            tables = measure_foreign(model, task, rung.batch, attention)
        for name, table in tables.items():
            for head, answers in enumerate(table.unbind(2)):
                row: Row = {"multiple": rung.multiple, "length": rung.length, "layer": name}
                rows.append({**row, "head": head, **_summary(answers)})
    return rows


def recalled(task: Task, batch: Batch) -> Tensor:
    """The source of each asked answer that must be recalled, (batch, tokens); -1 elsewhere."""
    asked = torch.tensor([task.parts.index(part) for part in task.asked], device=batch.part.device)
    source = task.truths(batch.inputs).source
    return source.where(torch.isin(batch.part, asked.to(batch.part.dtype)), ABSENT)


def measure(model: Model, task: Task, batch: Batch) -> dict[str, Tensor]:
    """`MEASURES` of every recalled answer, by attention layer: (measures, answers, heads)."""
    attention = attention_layers(model)
    gauges: dict[str, list[Tensor]] = {name: [] for name in attention}
    for block in blocks(batch):
        source = recalled(task, block)
        if not (source >= 0).any():
            continue
        hooks = {name: Gauge(source, layer.weights.is_softmax) for name, layer in attention.items()}
        with hooked(dict(hooks), model):
            watch(model, block.inputs, streams=False)
        for name, hook in hooks.items():
            gauges[name] += hook.measured
    return _joined(gauges, task)


def measure_foreign(
    model: nn.Module, task: Task, batch: Batch, attention: Sequence[str] | None
) -> dict[str, Tensor]:
    """`measure` of a model that is not ours, by attention module."""
    measured: dict[str, list[Tensor]] = {}
    for block in blocks(batch, max(1, FOREIGN_WEIGHTS // batch.inputs.shape[1])):
        source = recalled(task, block)
        number, token = (source >= 0).nonzero(as_tuple=True)
        if not len(number):
            continue
        place = (source >= 0).cumsum(1)[number, token] - 1  # among the answers of its row
        queries = torch.full_like(source[:, : int(place.max()) + 1], ABSENT)
        queries[number, place] = token
        seen = watch_foreign(model, block.inputs, queries, attention)
        for name, weights in seen.weights.items():
            rows = weights[number, :, place]
            answers = measured_rows(rows, None, token, source[number, token])
            measured.setdefault(name, []).append(answers)
    return _joined(measured, task)


def _joined(measured: dict[str, list[Tensor]], task: Task) -> dict[str, Tensor]:
    """The measures of all blocks, by layer."""
    tables = {name: torch.cat(parts, 1) for name, parts in measured.items() if parts}
    if not tables:
        raise NothingToSeeError(
            f"{task.name} asks for nothing that was stored: sharpness needs a task such as recall "
            f"or composite"
        )
    return tables


def require_attention(model: Model) -> dict[str, Attention]:
    """The attention of a model; an error if there is none."""
    attention = attention_layers(model)
    if not attention:
        raise no_attention(model, f"model={model.layout}: expected a model with attention")
    return attention


def asked_rows(block: AttentionBlock, asked: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the batch and queries of the block at which `asked` (batch, tokens) is True."""
    end = block.first + block.weights.shape[2]
    rows, queries = asked[:, block.first : end].nonzero(as_tuple=True)
    return rows, queries


class Gauge(Watcher):
    """A hook that measures the rows of recalled answers as they come; no row is kept.

    What there is none of is NaN: a margin without scores, the law of other weights than a softmax.
    """

    def __init__(self, source: Tensor, is_softmax: bool) -> None:
        self.source, self.is_softmax = source, is_softmax
        self.first = first_query(source >= 0)
        self.measured: list[Tensor] = []  # of each block (measures, answers, heads)

    def __call__(self, block: AttentionBlock) -> None:
        rows, queries = asked_rows(block, self.source >= 0)
        query = queries + block.first
        weights = block.weights[rows, :, queries]
        scores = None if block.scores is None else block.scores[rows, :, queries]
        source = self.source[rows, query]
        self.measured.append(measured_rows(weights, scores, query, source, self.is_softmax))


def measured_rows(
    weights: Tensor, scores: Tensor | None, query: Tensor, source: Tensor, is_softmax: bool = True
) -> Tensor:
    """`MEASURES` (measures, answers, heads) of rows of attention.

    Args:
        weights: Of each answer, (answers, heads, keys).
        scores: What they were made of, if that is known.
        query: The token at which each answer is due, (answers,).
        source: The token that holds it, (answers,).
        is_softmax: Whether the weights are a softmax of the scores.
    """
    keys = (query + 1).to(weights)[:, None]
    shares = weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    at_source = weight_at(weights, source)
    margin = torch.full_like(at_source, torch.nan) if scores is None else _margins(scores, source)
    measured = (
        keys.expand_as(at_source),
        -torch.xlogy(shares, shares).sum(-1),
        at_source,
        at_source + weight_at(weights, source - 1),
        weight_at(weights, source + 1),
        margin,
        law(keys, margin) if is_softmax else torch.full_like(margin, torch.nan),
        (weights > 1 / (10 * keys[..., None])).sum(-1).to(weights),
        (weights > 0).sum(-1).to(weights),
    )
    return torch.stack(measured).double()


def weight_at(weights: Tensor, place: Tensor) -> Tensor:
    """The weight of one token (answers,) in rows (answers, heads, keys); 0 outside the row."""
    inside = (place >= 0) & (place < weights.shape[-1])
    index = place.clamp(0, weights.shape[-1] - 1)[:, None, None].expand(-1, weights.shape[1], 1)
    return weights.gather(-1, index)[..., 0] * inside[:, None]


def _margins(scores: Tensor, source: Tensor) -> Tensor:
    """The score of the source less the largest other one, (answers, heads)."""
    index = source[:, None, None].expand(-1, scores.shape[1], 1)
    others = scores.scatter(-1, index, -torch.inf)
    return scores.gather(-1, index)[..., 0] - others.amax(-1)


def _summary(answers: Tensor) -> Row:
    """The columns of one head from its measures (measures, answers)."""
    measures = dict(zip(MEASURES, answers, strict=True))
    keys, margin = (float(measures.pop(name).median()) for name in ("keys", "margin"))
    means: Row = {name: float(values.mean()) for name, values in measures.items()}
    row: Row = {"count": answers.shape[1], "keys": keys, **means, "margin": margin}
    return without_nan({**row, "needed": math.log(max(keys - 1, 1))})


def law(keys: Tensor, margin: Tensor) -> Tensor:
    """The weight of softmax on a key whose score exceeds the equal scores of all others."""
    return 1 / (1 + (keys - 1) * torch.exp(-margin))
