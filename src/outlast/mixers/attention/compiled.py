"""The blocked path through torch.compile: on a GPU, where there are many scores.

Done one after the other, a scheme's operations read and write its table of scores dozens of times;
compiled, a few times. One program serves all layers of a spec, a part of the batch at a time where
its tables are large. Its backward pass computes the scores again, so between the passes only the
inputs are kept. Nothing compiled can run below vmap: seeds go through it one by one, which at this
size costs nothing.

Inductor is asked for its deterministic form, so that a run which is resumed stays the same. The
first step of a run waits for the compiler, some ten seconds; ``OUTLAST_COMPILE=off`` does without.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from outlast.errors import bad_value
from outlast.kernels.choosing import has_triton
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

Found = tuple[Tensor, Tensor | None]


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
    """What a program is made for; `given` says which arguments of the look there are."""

    kind: type[nn.Module]
    scheme: Spec
    weights: Spec
    width: int
    heads: int
    dropout: float
    given: tuple[bool, ...]


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
    if rows == batch:
        return _attend(look, positions, carry, marks, q, k, v, key)
    found = [
        _attend(look, positions, *(None if t is None else t[i : i + rows] for t in own), key)
        for own in [(carry, marks, q, k, v)]
        for i in range(0, batch, rows)
    ]
    y, after = zip(*found, strict=True)
    return torch.cat(y), None if after[0] is None else torch.cat(after)


def _divisor(batch: int, most: int) -> int:
    """The largest part of the batch, so that all parts are alike: each size is compiled anew."""
    return next(rows for rows in range(min(batch, most), 0, -1) if batch % rows == 0)


def _attend(look: Look, *given: Tensor | None) -> Found:
    scheme = look.scheme
    key = Key(
        type(look),
        scheme.spec,
        look.weights.spec,
        scheme.width,
        scheme.heads,
        look.dropout,
        tuple(t is not None for t in given),
    )
    own = [t for _, t in (*look.named_parameters(), *look.named_buffers())]
    there = [t for t in given if t is not None]
    found = _BySeed.apply(key, *own, *there)  # type: ignore[no-untyped-call]
    return found if isinstance(found, tuple) else (found, None)


class Program:
    """A look, and its gradient, compiled.

    It holds a look of its own without weights: those it is called with may be of many seeds.
    """

    def __init__(self, key: Key) -> None:
        with torch.device("meta"):
            scheme = schemes.build(key.scheme, width=key.width, heads=key.heads)
            weights = weightings.build(key.weights, width=key.width, heads=key.heads)
            look = key.kind(scheme, weights, key.dropout)
        names = [n for n, _ in (*look.named_parameters(), *look.named_buffers())]

        def run(*tensors: Tensor) -> Any:
            own = dict(zip(names, tensors, strict=False))
            left = iter(tensors[len(own) :])
            filled = tuple(next(left) if there else None for there in key.given)
            y, after = functional_call(look, own, filled)
            return y if after is None else (y, after)

        def pull(grads: tuple[Tensor, ...], *tensors: Tensor) -> Any:
            def floats(*some: Tensor) -> Any:  # positions and keys have no gradient
                left = iter(some)
                return run(*(next(left) if t.is_floating_point() else t for t in tensors))

            found: Any = torch.func.vjp(floats, *(t for t in tensors if t.is_floating_point()))
            output, backward = found
            return backward(grads if isinstance(output, tuple) else grads[0])

        options = OPTIONS if BACKEND == "inductor" else None
        self.forward = torch.compile(run, backend=BACKEND, dynamic=False, options=options)
        self.pull = torch.compile(pull, backend=BACKEND, dynamic=False, options=options)

    def backward(self, grads: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> list[Any]:
        """The gradients of all inputs, None for those that have none."""
        pulled = iter(self.pull(grads, *inputs))
        return [next(pulled) if t.is_floating_point() else None for t in inputs]


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
