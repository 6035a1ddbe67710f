"""From the layout line to the module."""

from __future__ import annotations

import torch
from torch import nn

from outlast.errors import SpecError, bad_value
from outlast.models.model import EMBEDDING_SCALE, Branches, Chain, Model, Sublayer
from outlast.registry import mixers, presets, suggest
from outlast.specs import Layout, Node, Parallel, Repeat, Serial, Spec, parse_layout

DEFAULT_WIDTH = 128


def canonical_layout(text: str | Layout, full: bool = False) -> Layout:
    """The line with presets written out, arguments in order and the width in place.

    `full` also writes out every default, so that the line means the same for ever.
    """
    layout = parse_layout(text)
    node = _resolve(layout.node, full)
    scale = layout.embedding or EMBEDDING_SCALE
    written = scale if full or scale != EMBEDDING_SCALE else None
    return Layout(node, layout.width or DEFAULT_WIDTH, written, layout.head)


def build_model(
    text: str | Layout, vocabulary: int, classes: int, seed: int | None = None
) -> Model:
    """Make the model that a line describes.

    It has an output for every token, as a language model has, unless the line says ``head=``; a
    task asks for the first `classes` of them. With a seed its weights are drawn from that seed
    alone, and torch's global random state is left as it was.
    """
    layout = canonical_layout(text)
    outputs = vocabulary if layout.head is None else layout.head
    if outputs < classes:
        raise bad_value("head", outputs, f"at least the task's {classes} answers")
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)  # weights are drawn on the CPU
        nodes = _make(layout.node, layout.width or DEFAULT_WIDTH)
        return Model(layout, Chain(nodes), vocabulary, outputs)


def _resolve(node: Node, full: bool) -> Node:
    match node:
        case Serial(nodes):
            return Serial(tuple(_resolve(n, full) for n in nodes))
        case Parallel(nodes):
            return Parallel(tuple(_resolve(n, full) for n in nodes))
        case Repeat(times, inner):
            return Repeat(times, _resolve(inner, full))
        case Spec(name) if name not in mixers and name in presets:
            made: Layout = presets.entry(name).factory(**presets.bind(node))
            if made.width is not None:
                raise SpecError(
                    f"preset {name!r}: a preset sets no width; take '@ ...' off its line"
                )
            return _resolve(made.node, full)
        case Spec(name) if name not in mixers:
            known = [*mixers.names(), *presets.names()]
            raise SpecError(f"there is no mixer or preset {name!r}{suggest(name, known)}")
    return mixers.canonical(node, full)


def _make(node: Node, width: int) -> list[nn.Module]:
    """The modules of a node, in order; a series inside a series is laid flat."""
    match node:
        case Serial(nodes):
            return [m for n in nodes for m in _make(n, width)]
        case Repeat(times, inner):
            return [m for _ in range(times) for m in _make(inner, width)]
        case Parallel(nodes):
            sides = [_make(n, width) for n in nodes]
            return [Branches([s[0] if len(s) == 1 else Chain(s) for s in sides])]
    return [Sublayer(width, mixers.build(node, width=width))]
