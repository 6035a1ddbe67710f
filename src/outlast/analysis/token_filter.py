"""Token filter (2303.07585): what share of the tokens suffices for the same accuracy.

Tan et al. (2023) rank the tokens of a text by the attention that they receive in the first layer of
BERT, keep the first of them, and classify the shorter text again. A task such as ours would be
another one with tokens taken out. So here all tokens stay, and the *keys* that are not kept are
masked: no query of attention sees them any more. That is our re-design. The recurrence still reads
every token.

::

    rows = token_filter(model, task)

The column `ranking` says whose attention is summed over all heads of the first attention layer:

=========  =====================================================================================
`answers`  that of the tokens at which an answer of a test is due (ours)
`tokens`   that of all tokens (the sums of the paper); in a causal model more of them see an early
           token than a late one
=========  =====================================================================================

The column `masked` says where: in the `later` attention layers, or in `all` of them. A model with
one attention layer has `all` alone. The weights that are left keep the sum of their row. A query
with no key left sees nothing.

Kept is a share of the tokens up to the last answer, rounded up, in each sequence for itself. A
share of 1 is the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from numbers import Real

import torch
from torch import Tensor

from outlast.analysis.interventions import Marked
from outlast.analysis.replay import Replay
from outlast.analysis.scoring import Tally, check_answers
from outlast.analysis.sequences import (
    LADDER,
    SEQUENCES,
    Row,
    blocks,
    draw_rungs,
)
from outlast.analysis.watching import attention_layers, hooked, layers, no_attention
from outlast.arguments import shown
from outlast.errors import bad_value
from outlast.evaluation.outputs import eval_mode
from outlast.mixers.attention.look import AttentionBlock
from outlast.models.model import Model
from outlast.tasks import Batch, Task

#: the shares of tokens that are kept, if nobody says
SHARES = (1.0, 0.5, 0.25, 0.1, 0.05)


class Received:
    """A hook that adds up the attention that each token gets, over heads and some queries.

    `queries` (batch, tokens) marks those queries. `total` is (batch, tokens).
    """

    def __init__(self, queries: Tensor) -> None:
        self.queries = queries
        self.total = torch.zeros(queries.shape, device=queries.device)

    def __call__(self, block: AttentionBlock) -> None:
        rows, keys = block.weights.shape[-2:]
        counted = self.queries[:, None, None, block.first : block.first + rows]
        self.total[:, :keys] += (counted.to(block.weights.dtype) @ block.weights).sum((1, 2))


def _check_shares(shares: object) -> None:
    accepted = "a list of shares of the tokens, above 0 and up to 1"
    if isinstance(shares, str | bytes) or not isinstance(shares, Collection) or not len(shares):
        raise bad_value("shares", shown(shares), accepted)
    for share in shares:
        is_number = isinstance(share, Real) and not isinstance(share, bool)
        if not is_number or not 0 < share <= 1:
            raise bad_value("shares", shown(share), accepted)


def token_filter(
    model: Model,
    task: Task,
    ladder: Sequence[float] = LADDER,
    sequences: int = SEQUENCES,
    shares: Sequence[float] = SHARES,
) -> list[Row]:
    """Accuracy by share of tokens kept: a row for each rung, ranking, place, share and part.

    Args:
        model: A model of ours with attention.
        task: A task with answers that are right or wrong.
        ladder: Multiples of the training length.
        sequences: Sequences of each length, those of `evaluate`.
        shares: The shares of tokens that are kept, above 0 and up to 1.
    """
    check_answers(task, ladder, sequences)
    _check_shares(shares)
    first, *later = _layer_names(model)
    masked = {"later": later, "all": [first, *later]} if later else {"all": [first]}
    rows: list[Row] = []
    by_name = dict(layers(model))
    with eval_mode(model), torch.no_grad():
        for rung in draw_rungs(model, task, ladder, sequences):
            tallies = {
                (ranking, place, share): Tally(task)
                for ranking in ("answers", "tokens")
                for place in masked
                for share in shares
            }
            for block in blocks(rung.batch):
                replay, received = _rank(model, task, first, block)
                whole, present = (
                    replay.logits[..., : task.classes].argmax(-1),
                    _present(task, block),
                )
                for (ranking, place, share), tally in tallies.items():
                    logits = replay.logits
                    if share < 1:
                        changed = [by_name[layer] for layer in masked[place]]
                        hook = Marked(_kept(received[ranking], present, share))
                        hooks = dict.fromkeys(masked[place], hook)
                        with replay.until(changed), hooked(dict(hooks), model):
                            logits = model(block.inputs)[0]
                    tally.add(logits, block, whole)
            for (ranking, place, share), tally in tallies.items():
                rows += tally.rows(
                    multiple=rung.multiple,
                    length=rung.length,
                    ranking=ranking,
                    masked=place,
                    share=float(share),
                )
    return rows


def _layer_names(model: Model) -> list[str]:
    names = list(attention_layers(model))
    if not names:
        words = "the token filter ranks tokens by attention: expected a model with attention"
        raise no_attention(model, words)
    return names


def _rank(model: Model, task: Task, first: str, block: Batch) -> tuple[Replay, dict[str, Tensor]]:
    """A pass of the whole model, and the attention that tokens receive, by ranking."""
    received = {
        "answers": Received(_asked(task, block)),
        "tokens": Received(_present(task, block)),
    }

    def see(seen: AttentionBlock) -> None:
        for watcher in received.values():
            watcher(seen)

    with hooked({first: see}, model):
        replay = Replay(model, block.inputs)
    return replay, {ranking: watcher.total for ranking, watcher in received.items()}


def _asked(task: Task, block: Batch) -> Tensor:
    """Where an answer of a test is due, (batch, tokens)."""
    asked = [task.parts.index(part) for part in task.asked]
    return torch.isin(block.part, torch.tensor(asked, device=block.part.device))


def _present(task: Task, block: Batch) -> Tensor:
    """Which tokens stand before the last answer or at it, (batch, tokens)."""
    return _asked(task, block).flip(1).cumsum(1).flip(1) > 0


def _kept(received: Tensor, present: Tensor, share: float) -> Tensor:
    """The tokens that received most: this share of those that are present, (batch, tokens)."""
    order = received.masked_fill(~present, -math.inf).argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
    count = present.sum(1, keepdim=True, dtype=torch.float64)
    return rank < (share * count - 1e-9).ceil()  # a share of 1/11 of 11 tokens is one token
