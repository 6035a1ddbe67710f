"""The blocked path through torch.compile: on a GPU, where there are many scores.

Done one after the other, a scheme's operations read and write its table of scores dozens of times;
compiled, a few times. One program serves all layers of a spec and a shape, a part of the batch at a
time where its tables are large. Its backward pass computes the scores again, so between the passes
only the inputs are kept. Nothing compiled can run below vmap: seeds go through it one by one, which
at this size costs nothing.

Inductor is asked for its deterministic form, so that a run which is resumed stays the same. The
first step of a run waits for the compiler, some ten seconds; ``OUTLAST_COMPILE=off`` does without.
"""

from __future__ import annotations

import os
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from outlast.errors import bad_value
from outlast.kernels.dispatch import has_triton
from outlast.mixers.attention.pure import Found, Run, both, own, pulled, pure, spread
from outlast.registry import schemes, weightings
from outlast.specs import Spec

if TYPE_CHECKING:
    from outlast.mixers.attention.blocks import Look

SWITCH = "OUTLAST_COMPILE"
#: numbers in the tables of one seed from which it pays, with gradients and without, and the most
#: that are held at a time
FEWEST, FEWEST_TO_TEST, MOST = 2**22, 2**28, 2**28
BACKEND = "inductor"
OPTIONS: dict[str, Any] = {"deterministic": True}


def pays(q: Tensor, numbers: int, whole: bool = False) -> bool:
    """Whether to compile for these queries, whose tables hold so many numbers.

    `whole`: the batch cannot be taken in parts.
    """
    asked = os.environ.get(SWITCH, "auto")
    if asked not in ("auto", "off"):
        raise bad_value(SWITCH, asked, "auto | off")
    fewest = FEWEST if torch.is_grad_enabled() else FEWEST_TO_TEST
    most = MOST if whole else MOST * q.shape[0]
    return asked == "auto" and _has_compiler(q) and fewest <= numbers <= most


def _has_compiler(q: Tensor) -> bool:
    return q.is_cuda and has_triton()


class Key(NamedTuple):
    """What a program is made for; `given` are the arguments' shapes, None for those left out."""

    kind: type[nn.Module]
    scheme: Spec
    weights: Spec
    width: int
    heads: int
    dropout: float
    given: tuple[torch.Size | None, ...]


def attend(
    look: Look,
    numbers: int,
    positions: Tensor,
    carry: Tensor | None,
    marks: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key: Tensor | None,
) -> Found:
    """What the look makes of these, whose tables hold so many numbers."""
    batch = q.shape[0]
    rows = _divisor(batch, MOST * batch // numbers)
    found = []
    for first in range(0, batch, rows):
        part = slice(first, first + rows)
        of_rows = (None if t is None else t[part] for t in (carry, marks, q, k, v))
        found.append(_attend(look, positions, *of_rows, key))
    if len(found) == 1:
        return found[0]
    y, after = zip(*found, strict=True)
    return torch.cat(y), None if after[0] is None else torch.cat(after)


def _divisor(batch: int, most: int) -> int:
    """The largest part of the batch, so that all parts are alike: each size is compiled anew."""
    return next(rows for rows in range(min(batch, most), 0, -1) if batch % rows == 0)


def _attend(look: Look, *given: Tensor | None) -> Found:
    there = [t for t in given if t is not None]
    key = Key(
        type(look),
        look.scheme.spec,
        look.weights.spec,
        look.scheme.width,
        look.scheme.heads,
        look.dropout,
        tuple(None if t is None else t.shape for t in given),
    )
    return both(_BySeed.apply(key, *own(look).values(), *there))  # type: ignore[no-untyped-call]


class Program:
    """A look, and its gradient, compiled for one shape.

    It holds a look of its own without weights: those it is called with may be of many seeds.
    """

    def __init__(self, key: Key) -> None:
        with torch.device("meta"):
            scheme = schemes.build(key.scheme, width=key.width, heads=key.heads)
            weights = weightings.build(key.weights, width=key.width, heads=key.heads)
            look = key.kind(scheme, weights, key.dropout)
        run = pure(look, list(own(look)), [shape is not None for shape in key.given])

        def forward(*tensors: Tensor) -> Any:
            return run(*tensors)

        def pull(grads: tuple[Tensor, ...], *tensors: Tensor) -> Any:
            return pulled(run, grads, tensors)

        self.forward, self.pull = _compiled(forward), _compiled(pull)

    def backward(self, grads: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> list[Any]:
        """The gradients of all inputs, None for those that have none."""
        return spread(self.pull(grads, *inputs), inputs)


def _compiled(function: Any) -> Run:
    """The function compiled, with a code object of its own.

    By that torch counts how often something was compiled, and gives up after a few times: all
    programs together would soon have had their share.
    """
    code = function.__code__.replace()
    named = (function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    options = OPTIONS if BACKEND == "inductor" else None
    return torch.compile(
        FunctionType(code, *named), backend=BACKEND, dynamic=False, options=options
    )


#: not made below vmap, where nothing may be drawn
_program = cache(Program)


class _BySeed(torch.autograd.Function):
    """A program; below vmap, on one seed after the other."""

    @staticmethod
    def forward(key: Key, *inputs: Tensor) -> Any:
        return _program(key).forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.key = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, *_program(ctx.key).backward(grads, ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, axes: tuple[Any, ...], key: Key, *inputs: Tensor) -> Any:
        size = info.batch_size
        each = [  # unbound at once: the gradient of each alone would be a table of all
            [t] * size if axis is None else t.unbind(axis)
            for t, axis in zip(inputs, axes[1:], strict=True)
        ]
        found = [_BySeed.apply(key, *own) for own in zip(*each, strict=True)]  # type: ignore[no-untyped-call]
        if isinstance(found[0], tuple):
            return tuple(map(torch.stack, zip(*found, strict=True))), (0,) * len(found[0])
        return torch.stack(found), 0
