"""From the layout line to the module."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from outlast.errors import SpecError, bad_value, incompatible, shortened
from outlast.machine import GIB, short_of
from outlast.models.model import EMBEDDING_SCALE, Branches, Chain, Model, Sublayer
from outlast.models.presets import preset_layout
from outlast.registry import mixers, presets, suggest
from outlast.specs import Layout, Node, Parallel, Repeat, Serial, Spec, parse_layout

DEFAULT_WIDTH = 128
#: the most sublayers of a model and the widest one; far more than can be trained
MOST_SUBLAYERS, MOST_WIDTH = 2000, 2**20


def canonical_layout(text: str | Layout, full: bool = False) -> Layout:
    """The line with presets written out, arguments in order and the width in place.

    `full` also writes out every default. Then the line means the same if a default changes.
    """
    layout = _written_out(parse_layout(text))
    if layout.width is not None and layout.width > MOST_WIDTH:
        raise bad_value("width", layout.width, f"a whole number up to {MOST_WIDTH:,}")
    node = _resolve(layout.node, full)
    if (sublayers := _count(node)) > MOST_SUBLAYERS:
        accepted = f"at most {MOST_SUBLAYERS:,}; every 'n x' multiplies them"
        raise bad_value("sublayers", f"{sublayers:,}", accepted)
    scale = layout.embedding or EMBEDDING_SCALE
    return Layout(
        node,
        layout.width or DEFAULT_WIDTH,
        scale if full or scale != EMBEDDING_SCALE else None,
        layout.head,
        None if layout.norm == "layer" else layout.norm,
        None if layout.residual == "plain" else layout.residual,
        layout.dropout or None,
    )


def build_model(
    text: str | Layout, vocabulary: int, classes: int, seed: int | None = None
) -> Model:
    """Build the model of a line: tokens (batch, tokens) to logits (batch, tokens, outputs).

    It has an output for every token, as a language model has, unless the line says ``head=``. The
    answers of a task are the first `classes` of them. With a seed the weights are drawn from that
    seed alone, and torch's global random state does not change.
    """
    layout = canonical_layout(text)
    outputs = vocabulary if layout.head is None else layout.head
    if outputs < classes:
        raise bad_value("head", outputs, f"at least {classes}, the number of the task's answers")
    with (
        torch.random.fork_rng(devices=[], enabled=seed is not None),
        MemoryLimit(f"the line is {shortened(layout)}, the vocabulary {vocabulary}"),
    ):
        if seed is not None:
            torch.default_generator.manual_seed(seed)  # weights are drawn on the CPU
        nodes = _make(layout.node, layout)
        return Model(layout, Chain(nodes), vocabulary, outputs)


class MemoryLimit(TorchFunctionMode):
    """Refuses the first table of a model for which there is no memory, before it is allocated.

    `sizes` says in words what decides the size of the model.
    """

    def __init__(self, sizes: str) -> None:
        super().__init__()
        self.sizes, self.used = sizes, 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _ALLOCATORS:
            shape = args[0] if args and isinstance(args[0], Sequence) else args
            self.used += 4 * math.prod(size for size in shape if isinstance(size, int))
            free = short_of(self.used, torch.device("cpu"))
            if free is not None:
                raise SpecError(
                    f"{self.used / GIB:.3g} GiB of weights: expected no more than the "
                    f"{free / GIB:.3g} GiB of memory that are free; take smaller numbers ("
                    f"{self.sizes})"
                )
        return func(*args, **(kwargs or {}))


#: what makes a table from its shape
_ALLOCATORS = (torch.empty, torch.zeros, torch.ones, torch.randn, torch.rand, torch.arange)


def _count(node: Node) -> int:
    """How many sublayers a node stands for."""
    match node:
        case Serial(nodes) | Parallel(nodes):
            return sum(map(_count, nodes))
        case Repeat(times, inner):
            return times * _count(inner)
    return 1


def _written_out(layout: Layout) -> Layout:
    """A preset that stands alone, written out. The line overrides its width and its options."""
    node = layout.node
    if not isinstance(node, Spec) or node.name in mixers or node.name not in presets:
        return layout
    preset = preset_layout(node)
    options = {**preset.options, **layout.options}
    width = preset.width if layout.width is None else layout.width
    return _written_out(Layout(preset.node, width, **options))  # type: ignore[arg-type]


def _resolve(node: Node, full: bool) -> Node:
    match node:
        case Serial(nodes):
            return Serial(tuple(_resolve(n, full) for n in nodes))
        case Parallel(nodes):
            return Parallel(tuple(_resolve(n, full) for n in nodes))
        case Repeat(times, inner):
            return Repeat(times, _resolve(inner, full))
        case Spec(name) if name not in mixers and name in presets:
            preset = preset_layout(node)
            choices = preset.written_options()
            if preset.width is not None:
                choices = [f"width={preset.width}", *choices]
            if choices:
                reason = f"it sets {', '.join(choices)} for the whole model, so it must stand alone"
                raise incompatible(f"preset {name}", "other sublayers", reason)
            return _resolve(preset.node, full)
        case Spec(name) if name not in mixers:
            known = [*mixers.names(), *presets.names()]
            raise SpecError(f"there is no mixer or preset {name!r}{suggest(name, known)}")
    return mixers.canonical(node, full)


def _make(node: Node, layout: Layout) -> list[nn.Module]:
    """The modules of a node, in order; a series inside a series is laid flat."""
    match node:
        case Serial(nodes):
            return [m for n in nodes for m in _make(n, layout)]
        case Repeat(times, inner):
            return [m for _ in range(times) for m in _make(inner, layout)]
        case Parallel(nodes):
            if layout.residual is not None:
                raise incompatible(
                    f"residual={layout.residual}", "'|'", "parallel branches share one stream"
                )
            branches = [_make(n, layout) for n in nodes]
            return [Branches([b[0] if len(b) == 1 else Chain(b) for b in branches])]
    width = layout.width or DEFAULT_WIDTH
    mixer = mixers.build(node, width=width)
    return [Sublayer(width, mixer, layout.norm, layout.residual)]
