"""Pairs of a question and a key token: which match in a feature, and the vectors that they have."""

from __future__ import annotations

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
            match less the mean of the others.
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
) -> Iterator[tuple[str, PairKeeper, dict[str, Contrast]]]:
    """Each attention layer that has queries, block by block, and its contrasts by kind of token."""
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
        for name, keeper in keepers.items():
            yield name, keeper, contrasts


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
    asked = torch.where(questions < 0, ABSENT, truth.key.gather(1, questions.clamp(min=0)))
    stored = truth.key.masked_fill(truth.source >= 0, ABSENT)
    contrasts = {}
    for kind, tokens in _kinds(stored).items():
        before = (place < questions[..., None]) & tokens[:, None]
        same = (stored[:, None] == asked[..., None]) & (asked[..., None] >= 0) & before
        near, far = _halves(before & ~same)
        weights = {"position": _difference(near, far)}
        if kind != "any":
            weights["identity"] = _difference(same, before & ~same)
        contrasts[kind] = Contrast(before, weights)
    return questions, contrasts


def _kinds(stored: Tensor) -> dict[str, Tensor]:
    """Which tokens (batch, tokens) hold a stored value, and which the key before it."""
    edge = torch.full_like(stored[:, :1], ABSENT)
    is_stored = stored >= 0
    if not is_stored.any():
        return {"any": torch.ones_like(is_stored)}
    value = is_stored & (stored != torch.cat([stored[:, 1:], edge], 1))
    key = is_stored & (stored != torch.cat([edge, stored[:, :-1]], 1))
    return {"value": value} if torch.equal(value, key) else {"value": value, "key": key}


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
