"""Changes of a model for as long as it is looked at: gates closed, attention replaced.

A row of attention that is replaced keeps its sum. That of a softmax is 1. A scheme such as `tra`
has rows of 0 where it keeps no key, and they stay 0. A row of which nothing is left is 0 as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from outlast.methods.delay.probing import find_flow
from outlast.methods.delay.sublayer import Gate, HeldSublayer
from outlast.mixers.attention.blocks import BUDGET
from outlast.mixers.attention.look import AttentionBlock, Change, Hook
from outlast.models.model import Sublayer

#: queries that are masked at once: no key after the last of them is computed
QUERIES = 128


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
def silent(model: nn.Module, modules: dict[str, nn.Module]) -> Iterator[None]:
    """Any model while the output of some of its modules is 0; afterwards it is as it was.

    A norm between a module and the residual stream of a model of `transformers` adds nothing
    either.
    """
    flow = find_flow(model, modules, example=None, needed=False)
    tail = {} if flow is None else flow.tail
    gate = Gate()
    gate.set(0.0, 1.0, True)
    held: list[HeldSublayer] = []
    try:
        for module in (*modules.values(), *tail.values()):
            held.append(HeldSublayer(module, gate))
        yield
    finally:
        for sublayer in reversed(held):
            sublayer.remove()


@contextmanager
def head_silent(projection: nn.Module, heads: int, head: int) -> Iterator[None]:
    """Attention without one of its heads: no weight of its output projection reads it."""
    weights: Tensor = projection.weight.data  # type: ignore[union-attr,assignment]
    of_head = weights.unflatten(1, (heads, -1))[:, head]
    before = of_head.clone()
    try:
        of_head.zero_()
        yield
    finally:
        of_head.copy_(before)


def output_projection(attention: nn.Module) -> tuple[nn.Module, int]:
    """The projection that reads all heads of a module side by side; their number, or 0: unknown."""
    config = getattr(attention, "config", None)
    heads = getattr(attention, "num_heads", None) or getattr(config, "num_attention_heads", None)
    projection = getattr(attention, "o_proj", getattr(attention, "out_proj", None))
    if isinstance(projection, nn.Linear) and heads and projection.in_features % heads == 0:
        return projection, heads
    return attention, 0


class OnlyKeys(Change):
    """Each query sees some of its keys alone; subclasses say which."""

    def seen(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Which keys queries see, (1 or batch, 1, queries, keys), from the numbers of both."""
        raise NotImplementedError

    def __call__(self, block: AttentionBlock) -> Tensor:
        mask = self.seen(*_numbers(block.weights, block.first))
        return _with_sum_of(block.weights, block.weights * mask)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys = torch.arange(k.shape[-2], device=k.device)

        def mask(first: int, end: int) -> Tensor:
            queries = keys[first:end]
            return self.seen(queries, keys[:end]) & (queries[:, None] >= keys[:end])

        return _attend_masked(q, k, v, len(keys), mask)


class Within(OnlyKeys):
    """Each query sees its last `window` keys, itself among them."""

    def __init__(self, window: int) -> None:
        self.window = window

    def seen(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (queries[:, None] - keys < self.window)[None, None]


class Marked(OnlyKeys):
    """Queries see the keys that are marked in `kept` (batch, tokens) alone."""

    def __init__(self, kept: Tensor) -> None:
        self.kept = kept

    def seen(self, queries: Tensor, keys: Tensor) -> Tensor:
        return self.kept[:, None, None, : len(keys)]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The keys that are marked are put side by side first, so that no others are computed."""
        tokens, counts = k.shape[-2], self.kept.cumsum(1).amax(0).clamp_min(1).tolist()
        place = self.kept.byte().argsort(dim=1, descending=True, stable=True)[:, : counts[-1]]
        is_marked = self.kept.gather(1, place)[:, None, None]
        k, v = (
            each.gather(2, place[:, None, :, None].expand_as(each[:, :, : counts[-1]]))
            for each in (k, v)
        )

        def mask(first: int, end: int) -> Tensor:
            queries = torch.arange(first, end, device=k.device)[:, None]
            return (is_marked & (queries >= place[:, None, None]))[..., : counts[end - 1]]

        return _attend_masked(q, k, v, tokens, mask)


class Uniform(Change):
    """The same weight on each key so far."""

    def __call__(self, block: AttentionBlock) -> Tensor:
        queries, keys = _numbers(block.weights, block.first)
        seen = (queries[:, None] >= keys).to(block.weights.dtype)
        return _with_sum_of(block.weights, seen.expand_as(block.weights))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        counted = torch.arange(1, v.shape[-2] + 1, device=v.device)[:, None]
        return (v.cumsum(-2) / counted)[..., -q.shape[-2] :, :]


def hard(block: AttentionBlock) -> Tensor:
    """All weight on the key that has most."""
    largest = block.weights.argmax(-1, keepdim=True)
    one = torch.zeros_like(block.weights).scatter(-1, largest, 1.0)
    return _with_sum_of(block.weights, one)


#: changes of all attention that need no more than a block, by name
CHANGES: dict[str, Hook] = {"hard": hard, "uniform": Uniform()}


def _attend_masked(
    q: Tensor, k: Tensor, v: Tensor, tokens: int, mask: Callable[[int, int], Tensor]
) -> Tensor:
    """Attention with a mask, some queries at a time; the last one is the last of the tokens.

    `mask(first, end)` says which of the first keys these queries see, (1 or batch, 1, queries,
    keys). Later keys are not computed.
    """
    end, outputs = tokens - q.shape[-2], []
    for some in q.split(min(QUERIES, max(1, BUDGET // (len(q) * tokens))), -2):
        first, end = end, end + some.shape[-2]
        seen = mask(first, end)
        keys = seen.shape[-1]
        y = functional.scaled_dot_product_attention(some, k[..., :keys, :], v[..., :keys, :], seen)
        outputs.append(y.masked_fill(~seen.any(-1, keepdim=True), 0))
    return torch.cat(outputs, -2)


def _numbers(weights: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """The numbers of the queries, of which the first is given, and of the keys."""
    rows, keys = weights.shape[-2:]
    return (
        torch.arange(first, first + rows, device=weights.device),
        torch.arange(keys, device=weights.device),
    )


def _with_sum_of(weights: Tensor, replaced: Tensor) -> Tensor:
    """`replaced` scaled row by row, so that each row has the sum that it had before."""
    left = replaced.sum(-1, keepdim=True)
    has_weight = left.abs() > torch.finfo(left.dtype).tiny
    scale = weights.sum(-1, keepdim=True) / left.masked_fill(~has_weight, 1)
    return replaced * scale.masked_fill(~has_weight, 0)
