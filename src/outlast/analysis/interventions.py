"""Changes of a model for as long as it is looked at: gates closed, attention replaced.

A row of attention that is replaced keeps its sum. That of a softmax is 1. A scheme such as `tra`
has rows of 0 where it keeps no key, and they stay 0. A row of which nothing is left is 0 as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from outlast.methods.delay.discovery import find_attention
from outlast.methods.delay.probing import find_flow
from outlast.methods.delay.sublayer import Gate, HeldSublayer
from outlast.mixers.attention.look import AttentionBlock, Hook
from outlast.models.model import Sublayer


@contextmanager
def closed(sublayers: Iterable[Sublayer]) -> Iterator[None]:
    """Sublayers that add nothing; afterwards their gates are as they were."""
    before = [(sublayer, sublayer.gate.clone(), sublayer.gate_mode) for sublayer in sublayers]
    try:
        for sublayer, _, _ in before:
            sublayer.set_gate(0)
        yield
    finally:
        for sublayer, gate, mode in before:
            sublayer.gate.copy_(gate)
            sublayer.gate_mode = mode


@contextmanager
def attention_closed(model: nn.Module) -> Iterator[None]:
    """Any model without what its attention adds; afterwards the model is as it was.

    The attention modules are found as `outlast.delay` finds them. A norm between attention and the
    residual stream of a model of `transformers` adds nothing either.
    """
    attention = find_attention(model, needs_recurrence=False)
    flow = find_flow(model, attention, example=None, needed=False)
    tail = {} if flow is None else flow.tail
    gate = Gate()
    gate.set(0.0, 1.0, True)
    held: list[HeldSublayer] = []
    try:
        for module in (*attention.values(), *tail.values()):
            held.append(HeldSublayer(module, gate))
        yield
    finally:
        for sublayer in reversed(held):
            sublayer.remove()


def without_head(head: int) -> Hook:
    """The weights of one head are 0."""

    def change(block: AttentionBlock) -> Tensor:
        weights = block.weights.clone()
        weights[:, head] = 0
        return weights

    return change


def within(window: int) -> Hook:
    """Each query sees its last `window` keys, itself among them."""

    def change(block: AttentionBlock) -> Tensor:
        return _with_sum_of(block.weights, block.weights * (_distances(block) < window))

    return change


def hard(block: AttentionBlock) -> Tensor:
    """All weight on the key that has most."""
    largest = block.weights.argmax(-1, keepdim=True)
    one = torch.zeros_like(block.weights).scatter(-1, largest, 1.0)
    return _with_sum_of(block.weights, one)


def uniform(block: AttentionBlock) -> Tensor:
    """The same weight on each key so far."""
    seen = (_distances(block) >= 0).to(block.weights.dtype)
    return _with_sum_of(block.weights, seen.expand_as(block.weights))


def only_keys(kept: Tensor) -> Hook:
    """Weight on the keys that are marked in kept (batch, tokens) alone."""

    def change(block: AttentionBlock) -> Tensor:
        mask = kept[:, None, None, : block.weights.shape[-1]]
        return _with_sum_of(block.weights, block.weights * mask)

    return change


#: changes of all attention that need no more than a block, by name
CHANGES: dict[str, Callable[[AttentionBlock], Tensor]] = {"hard": hard, "uniform": uniform}


def _distances(block: AttentionBlock) -> Tensor:
    """How many keys each key lies behind the query, (queries, keys)."""
    rows, keys = block.weights.shape[-2:]
    device = block.weights.device
    queries = torch.arange(block.first, block.first + rows, device=device)
    return queries[:, None] - torch.arange(keys, device=device)


def _with_sum_of(weights: Tensor, replaced: Tensor) -> Tensor:
    """`replaced` scaled row by row, so that each row has the sum that it had before."""
    left = replaced.sum(-1, keepdim=True)
    has_weight = left.abs() > torch.finfo(left.dtype).tiny
    scale = weights.sum(-1, keepdim=True) / left.masked_fill(~has_weight, 1)
    return replaced * scale.masked_fill(~has_weight, 0)
