"""Watching a model at work: what enters and leaves each sublayer, and what attention looks at.

::

    seen = watch(model, tokens, queries)
    seen.weights["2.attention"]     # (batch, heads, queries, tokens), of the chosen queries alone

Memory is bounded: attention goes a block of queries at a time, and only the rows that were asked
for are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from outlast.analysis.sequences import NothingToSeeError, not_joined, nothing_to_see
from outlast.arguments import shown
from outlast.errors import bad_value
from outlast.evaluation.outputs import eval_mode
from outlast.mixers.attention.attention import Attention
from outlast.mixers.attention.look import AttentionBlock, Hook, Watcher
from outlast.models.model import Model, Sublayer
from outlast.models.residual import ResidualStream

#: the name of what the output layer reads
HEAD = "head"


class Layer(NamedTuple):
    """A sublayer and its name: its number in the layout line, from 1, and its kind."""

    name: str
    sublayer: Sublayer


def is_ours(model: object) -> bool:
    """Whether a model has the sublayers of a layout line, as those of Outlast have."""
    return isinstance(model, nn.Module) and hasattr(model, "sublayers")


def require_ours(model: nn.Module, field: str = "model") -> None:
    """Refuse a model that is not one of ours; the error names what there is for others."""
    if not is_ours(model):
        raise nothing_to_see(
            field,
            type(model).__name__,
            "a model of Outlast; for other modules there are sharpness, watch_foreign, "
            "module_gradients, module_probe and pathway_ablation",
        )


def layers(model: Model) -> list[Layer]:
    """Every sublayer of a model in the order of its line: 1.lstm, 2.attention, 3.mlp."""
    require_ours(model)
    return [
        Layer(f"{number}.{sublayer.mixer.spec.name}", sublayer)
        for number, sublayer in enumerate(model.sublayers(), 1)
    ]


def attention_layers(model: Model) -> dict[str, Attention]:
    """The attention of a model, by the name of its layer; those whose gate is 0 are left out."""
    return {
        name: sublayer.mixer
        for name, sublayer in layers(model)
        if isinstance(sublayer.mixer, Attention) and sublayer.gate_mode != "off"
    }


def no_attention(model: Model, otherwise: str) -> NothingToSeeError:
    """The error where there is no attention to look at: it has not joined yet, or `otherwise`."""
    has_any = any(isinstance(sublayer.mixer, Attention) for sublayer in model.sublayers())
    waits = has_any and not attention_layers(model)
    return not_joined("the model") if waits else NothingToSeeError(otherwise)


@contextmanager
def hooked(hooks: dict[str, Hook], model: Model) -> Iterator[None]:
    """Attention layers with these hooks, by name; afterwards with those they had before."""
    attention = attention_layers(model)
    before = {name: attention[name].hook for name in hooks}
    try:
        for name, hook in hooks.items():
            attention[name].hook = hook
        yield
    finally:
        for name, previous in before.items():
            attention[name].hook = previous


@dataclass
class Watched:
    """What a pass showed, by the name of a layer.

    Args:
        logits: Of the pass, (batch, tokens, outputs).
        streams: The residual stream that enters a sublayer, (batch, tokens, width). The entry
            `head` is what the output layer reads, after the last norm.
        outputs: What a sublayer adds to the stream. That of a recurrence is its hidden state.
        weights: Attention of the chosen queries over all tokens, (batch, heads, queries, tokens).
        scores: What these weights were made of, -inf where nothing was seen. A scheme that makes
            its own weights has no entry.
    """

    logits: Tensor
    streams: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    scores: dict[str, Tensor] = field(default_factory=dict)


def watch(
    model: Model, tokens: Tensor, queries: Tensor | None = None, streams: bool = True
) -> Watched:
    """One pass over tokens (batch, tokens), without gradients and in eval mode.

    Args:
        model: A model of ours.
        tokens: The sequences.
        queries: Which tokens' attention is kept, (batch, queries): their numbers in the sequence.
            A negative number is a place that stays empty. None keeps no attention.
        streams: Whether `streams` and `outputs` are kept.
    """
    if queries is not None:
        check_queries(tokens, queries)
    seen = Watched(torch.empty(0))
    with ExitStack() as stack:
        stack.enter_context(eval_mode(model))
        stack.enter_context(torch.no_grad())
        if streams:
            for name, sublayer in layers(model):
                handle = sublayer.register_forward_hook(_keep_streams(seen, name))
                stack.callback(handle.remove)
            handle = model.head.register_forward_pre_hook(_keep_head(seen))
            stack.callback(handle.remove)
        if queries is not None:
            watchers = {
                name: RowKeeper(queries, tokens.shape[1]) for name in attention_layers(model)
            }
            stack.enter_context(hooked(dict(watchers), model))
        seen.logits = model(tokens)[0]
        if queries is not None:
            for name, watcher in watchers.items():
                seen.weights[name] = watcher.weights
                if watcher.scores is not None:
                    seen.scores[name] = watcher.scores
    return seen


def check_queries(tokens: Tensor, queries: Tensor) -> None:
    """Refuse tokens and queries that are no tables of the same batch, and queries past the end."""
    for name, table in (("tokens", tokens), ("queries", queries)):
        if not isinstance(table, Tensor) or table.ndim != 2:
            kind = tuple(table.shape) if isinstance(table, Tensor) else table
            raise bad_value(name, shown(kind), "a tensor of two axes, the batch first")
    batch, count = tokens.shape
    if len(queries) != batch:
        raise bad_value("queries", shown(tuple(queries.shape)), f"a row for each of {batch} rows")
    if queries.numel() and int(queries.max()) >= count:
        raise bad_value("queries", int(queries.max()), f"numbers of tokens, below {count}")


def first_query(asked: Tensor) -> int:
    """The first token at which `asked` (batch, tokens) is True anywhere; their number for none."""
    anywhere = asked.any(0)
    return int(torch.where(anywhere.any(), anywhere.long().argmax(), len(anywhere)))


class RowKeeper(Watcher):
    """A hook that keeps the rows of some queries, (batch, heads, queries, tokens)."""

    weights: Tensor
    scores: Tensor | None = None

    def __init__(self, queries: Tensor, tokens: int) -> None:
        self.queries, self.tokens = queries, tokens
        self.first = int(queries.where(queries >= 0, tokens - 1).amin()) if queries.numel() else 0

    def __call__(self, block: AttentionBlock) -> None:
        self.weights = self._kept(block, block.weights, getattr(self, "weights", None), 0.0)
        if block.scores is not None:
            self.scores = self._kept(block, block.scores, self.scores, -torch.inf)

    def _kept(
        self, block: AttentionBlock, table: Tensor, kept: Tensor | None, empty: float
    ) -> Tensor:
        batch, heads, rows, keys = table.shape
        if kept is None:
            shape = (batch, heads, self.queries.shape[1], self.tokens)
            kept = table.new_full(shape, empty)
        queries = self.queries.to(table.device)
        place = queries - block.first
        here = (queries >= 0) & (place >= 0) & (place < rows)
        index = place.clamp(0, rows - 1)[:, None, :, None].expand(-1, heads, -1, keys)
        chosen = functional.pad(table.gather(2, index), (0, self.tokens - keys), value=empty)
        return torch.where(here[:, None, :, None], chosen, kept)


def _keep_streams(seen: Watched, name: str) -> Callable[..., None]:
    def keep(_: Sublayer, inputs: tuple[Any, ...], output: tuple[Tensor | None, Any]) -> None:
        stream = inputs[0]
        seen.streams[name] = stream.x if isinstance(stream, ResidualStream) else stream
        if output[0] is not None:
            seen.outputs[name] = output[0]

    return keep


def _keep_head(seen: Watched) -> Callable[..., None]:
    def keep(_: Any, inputs: tuple[Tensor, ...]) -> None:
        seen.streams[HEAD] = inputs[0]

    return keep
