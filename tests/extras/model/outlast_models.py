"""Small Outlast models for the tests of this folder."""

from __future__ import annotations

import torch
from torch import Tensor

import outlast
from outlast.models import Model
from outlast.tasks import Task

TASK = "composite(modulus=2, keys=8, queries=2, length=4)"
HYBRID = "2 x (lstm > attention(rope, heads=2) > mlp) @ 16"
LINES = (
    HYBRID,
    "lstm > mlp @ 16",
    "2 x (attention(tra, heads=2) > mlp) @ 16, norm=rms",
    "gru | attention(alibi, heads=2, weights=doubly_normalised) > mlp @ 16",
)


def task() -> Task:
    return outlast.task(TASK)


def model_of(line: str = HYBRID, seed: int = 0) -> Model:
    """A model whose outputs depend on much: one as it is drawn repeats itself."""
    model, generator = outlast.model(line, TASK, seed), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += torch.randn(weight.shape, generator=generator) / 2
    return model.eval()


def tokens_of(rows: int = 3, tokens: int = 9) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(task().vocabulary, (rows, tokens), generator=generator)
