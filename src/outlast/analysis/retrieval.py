"""The heads that look an answer up: which they are, what they look at, and how to help them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from outlast.analysis.sharpness import MEASURES, asked_rows, measure
from outlast.mixers.attention.look import AttentionBlock
from outlast.models.model import Model
from outlast.tasks import Batch, Task
from outlast.tasks.truth import ABSENT


class Retriever(NamedTuple):
    """The heads of a layer that retrieve, and the token they look at: the source plus `offset`."""

    layer: str
    heads: tuple[int, ...]
    offset: int
    weight: float


def find_retriever(model: Model, task: Task, batch: Batch) -> Retriever:
    """The heads that put most weight on the source of an answer, or on the token after it."""
    best = Retriever("", (), 0, -1.0)
    for layer, table in measure(model, task, batch).items():
        for offset, column in enumerate(("weight", "weight_after")):
            weights = table[MEASURES.index(column)].mean(0)
            if weights.max() > best.weight:
                heads = (weights >= weights.max() / 2).nonzero()[:, 0].tolist()
                best = Retriever(layer, tuple(heads), offset, float(weights.max()))
    return best


class Attended:
    """A hook that keeps the token with the largest total weight of the retrieving heads."""

    def __init__(self, source: Tensor, retriever: Retriever) -> None:
        self.source, self.retriever = source, retriever
        self.tokens = torch.full_like(source, ABSENT)

    def __call__(self, block: AttentionBlock) -> None:
        rows, queries = asked_rows(block, self.source >= 0)
        total = block.weights[:, list(self.retriever.heads)].sum(1)[rows, queries]
        self.tokens[rows, queries + block.first] = total.argmax(-1)

    def on_source(self) -> Tensor:
        """Where it is the source, the token before, or the one they look at when they retrieve."""
        ahead = self.tokens - self.source
        return (ahead == 0) | (ahead == -1) | (ahead == self.retriever.offset)


class HardAttention:
    """A hook that puts all weight of the retrieving heads on the right token, at each answer."""

    def __init__(self, source: Tensor, retriever: Retriever) -> None:
        self.source, self.retriever = source, retriever

    def __call__(self, block: AttentionBlock) -> Tensor:
        rows, queries = asked_rows(block, self.source >= 0)
        token = self.source[rows, queries + block.first] + self.retriever.offset
        weights = block.weights.clone()
        for head in self.retriever.heads:
            weights[rows, head, queries] = 0
            weights[rows, head, queries, token] = 1
        return weights
