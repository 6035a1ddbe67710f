"""An item of the notation joins a training: it takes the place of what is there of its kind.

======================================= =========================================================
``gru``, ``my_recurrence(heads=2)``     the recurrence of the model
``attention(tra)``                      its attention
``glu``, ``conv(kernel=3)``             its pointwise layer, its convolution
``alibi``, ``rope(base=500)``           the scheme of its attention
``tra``, ``stick_breaking``             the scheme and the weights: they make their own weights
``asentmax``, ``topk(8)``               the weights of its attention
``state_passing``, ``dat(mode=ramp)``   the method of that name, or one more
``2 x (gru > attention > mlp)``         the whole model
======================================= =========================================================

Where two kinds have an item of one name, the kind is written before it: ``scheme=NAME``. With
``method=none`` there is no method. An item of another package counts once that is installed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import torch

from outlast.errors import SpecError
from outlast.mixers import Mixer
from outlast.mixers.attention import Attention
from outlast.models.build import DEFAULT_WIDTH, canonical_layout
from outlast.registry import KINDS, methods, mixers, presets, suggest
from outlast.runs.spec import NONE, RunSpec
from outlast.specs import Layout, Node, Parallel, Repeat, Serial, Spec, parse, parse_layout
from outlast.workflow.create import canonical

#: kinds of which an item can join
JOINING = ("mixer", "scheme", "weights", "method")


def with_item(run: RunSpec, item: str) -> RunSpec:
    """A run in which an item has the place of what is there of its kind."""
    try:
        kind, text = _split(item)
        changed = _joined(run, kind, text)
        canonical(changed)  # what would be wrong with it is an error now
        _roles(canonical_layout(changed.model))
    except SpecError as error:
        raise SpecError(f"with={item}: {error}") from None
    return changed


def is_recurrence(name: str) -> bool:
    """Whether a mixer can hold a state; one that cannot be built from its name alone is none."""
    try:
        return _role(Spec(name), DEFAULT_WIDTH) == "recurrence"
    except SpecError:
        return False


def slug(item: str) -> str:
    """An item as a part of a folder's name: ``topk(8)`` is ``topk-8``."""
    kind, _, text = item.partition("=")
    text = text if kind in (*JOINING, "model") else item
    return re.sub(r"[^a-z0-9_.]+", "-", text.lower()).strip("-.")


def _joined(run: RunSpec, kind: str, text: str) -> RunSpec:
    if kind == "model":
        return replace(run, model=_as_wide(parse_layout(text), parse_layout(run.model)))
    if kind == "method":
        return replace(run, methods=_with_method(run.methods, text))
    layout, item = canonical_layout(run.model), parse(text)
    width = layout.width or DEFAULT_WIDTH
    if kind == "mixer":
        role = _role(item, width)
        changed = _replaced(layout, lambda spec: item if _role(spec, width) == role else spec)
    else:
        KINDS[kind].bind(item)  # an error about its arguments is about itself

        def attending(spec: Spec) -> Spec:
            return _attending(spec, kind, item, width) if spec.name == "attention" else spec

        changed = _replaced(layout, attending)
        role = "attention"
    if str(changed) == str(layout) and role not in _roles(layout):
        raise SpecError(f"the model {layout} has no {role} whose place it could take")
    return replace(run, model=str(changed))


def _split(item: str) -> tuple[str, str]:
    """The kind of an item, and its line."""
    written = re.match(r"\s*([a-z]+)\s*=(.*)", item, re.DOTALL)
    if written:
        kind, text = written[1], written[2].strip()
        if kind not in (*JOINING, "model"):
            raise SpecError(
                f"expected {'=, '.join(JOINING)}= or model= before an item, not {kind}="
            )
        return kind, text
    layout = parse_layout(item)
    node = layout.node
    if not isinstance(node, Spec) or layout.width is not None:
        return "model", item
    kinds = [kind for kind in JOINING if node.name in KINDS[kind]]
    if not kinds and node.name in presets:
        return "model", item
    if not kinds:
        known = {name for kind in JOINING for name in KINDS[kind].names()}
        raise SpecError(
            f"there is no {', '.join(JOINING)} or preset {node.name!r}{suggest(node.name, known)}"
        )
    if len(kinds) > 1:
        ways = " or ".join(f"{kind}={item.strip()}" for kind in kinds)
        raise SpecError(f"several kinds have an item of that name; write {ways}")
    return kinds[0], item


def _as_wide(layout: Layout, like: Layout) -> str:
    """A line with the width and the outputs of another one, where it gives none."""
    width, head = layout.width or like.width, layout.head or like.head
    return str(replace(layout, width=width, head=head if width else None))


def _with_method(before: tuple[str, ...], text: str) -> tuple[str, ...]:
    if text == NONE:
        return ()
    methods.bind(text)
    name = parse(text).name
    if name not in [parse(method).name for method in before]:
        return (*before, text)
    return tuple(text if parse(method).name == name else method for method in before)


def _role(spec: Spec, width: int) -> str:
    """What a mixer does in a model: items of one role can take each other's place."""
    with torch.device("meta"):  # draws nothing and allocates nothing
        mixer: Mixer = mixers.build(spec, width=width)
    if mixer.pathway == "recurrent":
        return "recurrence" if mixer.holds_state else "convolution"
    return "attention" if mixer.pathway == "attention" else "pointwise layer"


def _roles(layout: Layout) -> set[str]:
    roles: set[str] = set()
    width = layout.width or DEFAULT_WIDTH

    def note(spec: Spec) -> Spec:
        roles.add(_role(spec, width))
        return spec

    _replaced(layout, note)
    return roles


def _attending(spec: Spec, kind: str, item: Spec, width: int) -> Spec:
    """Attention with another scheme or other weights.

    A scheme that makes its own weights takes the place of the weights, too.
    """
    arguments = dict(spec.kwargs)
    if kind == "weights":
        return Spec(spec.name, spec.args, tuple((arguments | {"weights": item}).items()))
    weights = arguments.pop("weights", None)
    arguments.pop("scheme", None)
    bare = Spec(spec.name, (item,), tuple(arguments.items()))
    with torch.device("meta"):
        attention: Attention = mixers.build(bare, width=width)
    if weights is None or attention.scheme.weighs:
        return bare
    return replace(bare, kwargs=(*bare.kwargs, ("weights", weights)))


def _replaced(layout: Layout, change: Callable[[Spec], Spec]) -> Layout:
    """A layout with every sublayer changed."""

    def walk(node: Node) -> Node:
        match node:
            case Serial(nodes):
                return Serial(tuple(map(walk, nodes)))
            case Parallel(nodes):
                return Parallel(tuple(map(walk, nodes)))
            case Repeat(times, inner):
                return Repeat(times, walk(inner))
        return change(node)

    return replace(layout, node=walk(layout.node))
