"""From the layout line to the module."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from outlast.errors import SpecError
from outlast.models.model import Branches, Chain, Model, Sublayer
from outlast.registry import mixers, presets, suggest
from outlast.specs import Layout, Node, Parallel, Repeat, Serial, Spec, parse_layout

DEFAULT_WIDTH = 128


def canonical_layout(text: str | Layout) -> Layout:
    """The line with presets written out, arguments in order and the width in place."""
    layout = parse_layout(text)
    node = _resolve(layout.node)
    return replace(layout, node=node, width=layout.width or DEFAULT_WIDTH)


def build_model(
    text: str | Layout, vocabulary: int, classes: int, seed: int | None = None
) -> Model:
    """Make the model that a line describes.

    With a seed its weights are drawn from that seed alone, and torch's global random state is
    left as it was.
    """
    layout = canonical_layout(text)
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)  # weights are drawn on the CPU
        nodes = _make(layout.node, layout.width or DEFAULT_WIDTH)
        return Model(layout, Chain(nodes), vocabulary, classes)


def _resolve(node: Node) -> Node:
    match node:
        case Serial(nodes):
            return Serial(tuple(_resolve(n) for n in nodes))
        case Parallel(nodes):
            return Parallel(tuple(_resolve(n) for n in nodes))
        case Repeat(times, inner):
            return Repeat(times, _resolve(inner))
        case Spec(name) if name not in mixers and name in presets:
            made: Layout = presets.entry(name).factory(**presets.bind(node))
            return _resolve(made.node)
        case Spec(name) if name not in mixers:
            known = [*mixers.names(), *presets.names()]
            raise SpecError(f"there is no mixer or preset {name!r}{suggest(name, known)}")
    return mixers.canonical(node)


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
