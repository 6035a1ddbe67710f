"""Pairs of a question and a key token: which match in a feature, and the vectors that they have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from outlast.analysis.sequences import NothingToSeeError, blocks
from outlast.analysis.watching import RowKeeper, attention_layers, hooked, no_attention
from outlast.mixers.attention.look import AttentionBlock
from outlast.models.model import Model
from outlast.tasks import Batch, Task
from outlast.tasks.truth import ABSENT

#: the most questions of a sequence that are looked at, the last ones
QUESTIONS = 8


class Contrast(NamedTuple):
    """Key tokens of one kind for each question.

    Args:
        candidates: The tokens of this kind before the question, (batch, questions, tokens).
        weights: By feature, (batch, questions, tokens): 1 over the number of pairs that match where
            they match, -1 over the number of the others where they do not, 0 elsewhere. A question
            that has not both has zeros alone. So a sum over tokens is the mean of the pairs that
            match less the mean of the others. Items that were overwritten under the key that is
            asked for are neither.
    """

    candidates: Tensor
    weights: dict[str, Tensor]


class PairKeeper(RowKeeper):
    """A hook that keeps the vectors and scores of some queries, and all keys.

    `q` is (batch, heads, queries, head width), `k` the same with all tokens.
    """

    q: Tensor
    k: Tensor

    def __call__(self, block: AttentionBlock) -> None:
        super().__call__(block)
        q, k = block.inputs.q, block.inputs.k
        place = self.queries - block.first
        here = ((place >= 0) & (place < q.shape[-2]))[:, None, :, None]
        index = place.clamp(0, q.shape[-2] - 1)[:, None, :, None]
        chosen = q.gather(2, index.expand(-1, q.shape[1], -1, q.shape[-1]))
        before = getattr(self, "q", None)
        self.q = torch.where(here, chosen, torch.zeros_like(chosen) if before is None else before)
        self.k = k

    @property
    def products(self) -> Tensor:
        """q k^T / sqrt(d), (batch, heads, queries, tokens)."""
        return self.q @ self.k.mT / self.q.shape[-1] ** 0.5

    @property
    def logits(self) -> Tensor:
        """The scores, 0 where nothing is seen; q k^T / sqrt(d) if the scheme gives none."""
        if self.scores is None:
            return self.products
        return self.scores.masked_fill(self.scores.isneginf(), 0)


def pairs(
    model: Model, task: Task, batch: Batch
) -> Iterator[tuple[dict[str, PairKeeper], dict[str, Contrast]]]:
    """Block by block: the attention layers that have queries, and contrasts by kind of token."""
    names = [name for name, mixer in attention_layers(model).items() if mixer.scheme.uses_queries]
    if not names:
        raise no_attention(
            model,
            "queries and keys are compared: expected a model with an attention layer that has "
            "queries",
        )
    for block in blocks(batch):
        questions, contrasts = contrast(task, block)
        keepers = {name: PairKeeper(questions, block.inputs.shape[1]) for name in names}
        with hooked(dict(keepers), model):
            model(block.inputs)
        yield keepers, contrasts


def contrast(task: Task, block: Batch) -> tuple[Tensor, dict[str, Contrast]]:
    """The last questions of each row, (batch, questions), -1 for none, and contrasts by kind."""
    truth = task.truths(block.inputs)
    place = torch.arange(block.inputs.shape[1], device=block.inputs.device)
    most = min(QUESTIONS, len(place))
    questions = torch.where(truth.source >= 0, place, ABSENT).topk(most, 1).values
    if (questions < 0).all():
        raise NothingToSeeError(
            f"{task.name} asks for nothing that stands in the sequence: expected a task that asks "
            f"for what was stored, such as recall"
        )
    stored = truth.key.masked_fill(truth.source >= 0, ABSENT)
    source = _at(truth.source, questions)
    asked = _at(stored, source)  # the key of the item that holds the answer
    contrasts = {}
    for kind, value in _kinds(stored, source).items():
        before = (place < questions[..., None]) & (value >= 0)[:, None]
        of_key = before & (stored[:, None] == asked[..., None]) & (asked[..., None] >= 0)
        others = before & ~of_key
        near, far = _halves(others)
        weights = {"position": _difference(near, far)}
        if kind != "any":
            newest = of_key & (value[:, None] == source[..., None])
            weights["identity"] = _difference(newest, others)
        contrasts[kind] = Contrast(before, weights)
    return questions, contrasts


def _at(table: Tensor, places: Tensor) -> Tensor:
    """The entries (batch, questions) of a table (batch, tokens); none at a place below 0."""
    return torch.where(places < 0, ABSENT, table.gather(1, places.clamp(min=0)))


def _kinds(stored: Tensor, source: Tensor) -> dict[str, Tensor]:
    """By kind of token, (batch, tokens): at a token of this kind, the place of its item's value.

    An item is the token of its key and then its value, or one token for both. Neighbours may be of
    one key, so a run of tokens of one key is one or more items. How many tokens an item has divides
    the length of each run, and that of its part up to a source. Runs without a source do not count,
    as they may lack a value.

    Args:
        stored: The number of the key at each token of an item, (batch, tokens).
        source: Where the values stand that are asked for, (batch, questions).
    """
    place = torch.arange(stored.shape[1], device=stored.device).expand_as(stored)
    is_stored = stored >= 0
    if not is_stored.any():
        return {"any": place}
    edge = torch.full_like(stored[:, :1], ABSENT)
    begins = stored != torch.cat([edge, stored[:, :-1]], 1)
    ends = stored != torch.cat([stored[:, 1:], edge], 1)
    first = place.where(begins, 0).cummax(1).values  # of the token's run
    number = place - first
    of_source = (_at(first, source)[..., None] == first[:, None]).any(1)
    is_source = (source[..., None] == place[:, None]).any(1)
    lengths = number[is_stored & of_source & (ends | is_source)] + 1
    width = math.gcd(*lengths.unique().tolist()) or 1
    left = width - 1 - number % width  # tokens up to the value of the item
    kinds = {"value": 0, "key": 1} if width > 1 else {"value": 0}
    return {
        kind: (place + left).where(is_stored & (left == before), ABSENT)
        for kind, before in kinds.items()
    }


def shuffled(weights: Tensor, order: Tensor) -> Tensor:
    """The weights that there would be if the items of each sequence stood in another order.

    Each question keeps its weights and the tokens that have one. The weights go to these tokens as
    they come in the order.

    Args:
        weights: Of a `Contrast`, (batch, questions, tokens).
        order: The tokens of each sequence in another order, (batch, tokens). All questions of a
            sequence have the same one, as they share its tokens.
    """
    order = order[:, None].expand_as(weights)
    labelled = weights != 0
    labels = torch.zeros_like(weights).scatter_add(2, _rank(labelled), weights)
    again = labelled.gather(2, order)
    return torch.zeros_like(weights).scatter(2, order, labels.gather(2, _rank(again)) * again)


def _rank(tokens: Tensor) -> Tensor:
    """How many of the tokens stand before each of them."""
    return (tokens.cumsum(-1) - 1).clamp(min=0)


def _halves(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The nearer and the farther half of the tokens; the middle one of an odd number is neither."""
    nearer = tokens.long().flip(-1).cumsum(-1).flip(-1) - tokens.long()
    half = tokens.sum(-1, keepdim=True) // 2
    count = tokens.sum(-1, keepdim=True)
    return tokens & (nearer < half), tokens & (nearer >= count - half)


def _difference(matched: Tensor, others: Tensor) -> Tensor:
    both = matched.any(-1, keepdim=True) & others.any(-1, keepdim=True)
    means = [one / one.sum(-1, keepdim=True).clamp(min=1) for one in (matched, others)]
    return (means[0] - means[1]) * both
