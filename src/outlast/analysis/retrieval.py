"""The heads that look an answer up: which they are, what they look at, and how to help them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from outlast.analysis.sequences import nothing_to_see
from outlast.analysis.sharpness import MEASURES, asked_rows, measure
from outlast.analysis.watching import first_query
from outlast.mixers.attention.look import AttentionBlock, Watcher
from outlast.models.model import Model
from outlast.runs.analyses import RetrievingHeads
from outlast.tasks import Batch, Task
from outlast.tasks.truth import ABSENT

#: attention is spread if no token has so many times the even weight, or half of all (our choice)
FOCUS, HALF = 3.0, 0.5


class Retriever(NamedTuple):
    """The heads of a layer that retrieve, and the token they look at: the source plus `offset`.

    `weight` is the mean weight of the best of them on that token.
    """

    layer: str
    heads: tuple[int, ...]
    offset: int
    weight: float

    @property
    def record(self) -> RetrievingHeads:
        """The heads as examples of a table have them."""
        return RetrievingHeads(
            layer=self.layer, heads=list(self.heads), offset=self.offset, weight=self.weight
        )


def find_retriever(model: Model, task: Task, batch: Batch) -> Retriever:
    """The heads that put most weight on the source of an answer, or on the token after it."""
    best = Retriever("", (), 0, -torch.inf)
    for layer, table in measure(model, task, batch).items():
        for offset, column in enumerate(("weight", "weight_after")):
            weights = table[MEASURES.index(column)].mean(0).nan_to_num(-torch.inf)
            if weights.max() > best.weight:
                heads = (weights >= weights.max() / 2).nonzero()[:, 0].tolist()
                best = Retriever(layer, tuple(heads), offset, float(weights.max()))
    if not best.heads:
        raise nothing_to_see("model", model.layout, "a model with finite attention weights")
    return best


class Attended(Watcher):
    """A hook that keeps what the retrieving heads look at where an answer must be recalled.

    `tokens` (batch, tokens) has the token with their largest total weight, -1 elsewhere. `focused`
    says whether a token has weight: one of the heads gives it `FOCUS` times 1 / n, n being the
    number of keys. For few keys that is more than all there is; half of all is enough.
    """

    def __init__(self, source: Tensor, retriever: Retriever) -> None:
        self.source, self.retriever = source, retriever
        self.first = first_query(source >= 0)
        self.tokens = torch.full_like(source, ABSENT)
        self.focused = torch.zeros_like(source, dtype=torch.bool)

    def __call__(self, block: AttentionBlock) -> None:
        rows, queries = asked_rows(block, self.source >= 0)
        asked = queries + block.first
        weights = block.weights[:, list(self.retriever.heads)].transpose(1, 2)[rows, queries]
        self.tokens[rows, asked] = weights.sum(1).argmax(-1)
        enough = (FOCUS / (asked + 1)).clamp(max=HALF)
        self.focused[rows, asked] = weights.amax((1, 2)) >= enough

    def on_source(self) -> Tensor:
        """Where they look at the source, or at the token they look at when they retrieve."""
        ahead = self.tokens - self.source
        return (ahead == 0) | (ahead == self.retriever.offset)


class HardAttention(Watcher):
    """A hook that puts all weight of the retrieving heads on the right token, at each answer."""

    def __init__(self, source: Tensor, retriever: Retriever) -> None:
        self.source, self.retriever = source, retriever
        self.first = first_query(source >= 0)

    def __call__(self, block: AttentionBlock) -> Tensor:
        rows, queries = asked_rows(block, self.source >= 0)
        token = self.source[rows, queries + block.first] + self.retriever.offset
        weights = block.weights.clone()
        for head in self.retriever.heads:
            weights[rows, head, queries] = 0
            weights[rows, head, queries, token] = 1
        return weights
