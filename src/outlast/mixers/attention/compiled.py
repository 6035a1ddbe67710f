"""The blocked path through torch.compile: on a GPU, where there are many scores.

One by one, a scheme's operations read and write its table of scores dozens of times; compiled, a
few times. One program serves all layers of a spec and a shape. If its tables are large, it takes a
part of the batch at a time. Its backward pass computes the scores again, so only the inputs are
kept between the passes. Compiled code cannot run below vmap: seeds go through it one by one, which
at this size costs nothing.

Inductor runs in its deterministic form, so that a resumed run stays the same. The first step of a
run waits for the compiler, about ten seconds; ``OUTLAST_COMPILE=off`` switches it off.
"""

from __future__ import annotations

import os
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from outlast.errors import require
from outlast.kernels.dispatch import has_triton
from outlast.mixers.attention import pure
from outlast.mixers.attention.look import Look
from outlast.registry import schemes, weightings
from outlast.specs import Spec

SWITCH = "OUTLAST_COMPILE"
#: the fewest numbers in the tables of one seed for which it pays, with gradients and without, and
#: the most held at a time
FEWEST, FEWEST_TO_TEST, MOST = 2**22, 2**28, 2**28
BACKEND = "inductor"
OPTIONS: dict[str, Any] = {"deterministic": True}


def pays(q: Tensor, numbers: int, whole: bool = False) -> bool:
    """Whether to compile for these queries, whose tables hold so many numbers.

    `whole`: the batch cannot be split.
    """
    switch = os.environ.get(SWITCH, "auto")
    require(switch in ("auto", "off"), SWITCH, switch, "auto | off")
    fewest = FEWEST if torch.is_grad_enabled() else FEWEST_TO_TEST
    most = MOST if whole else MOST * q.shape[0]
    return switch == "auto" and _has_compiler(q) and fewest <= numbers <= most


def _has_compiler(q: Tensor) -> bool:
    return q.is_cuda and has_triton()


class Key(NamedTuple):
    """What a program is made for; `shapes` are those of the inputs, None for those left out."""

    kind: type[nn.Module]
    scheme: Spec
    weights: Spec
    width: int
    heads: int
    dropout: float
    shapes: tuple[torch.Size | None, ...]


def attend(look: Look, inputs: pure.Inputs, numbers: int) -> pure.Output:
    """The output of the look for these inputs, whose tables hold so many numbers."""
    batch = inputs.q.shape[0]
    rows = _divisor(batch, MOST * batch // numbers)
    starts = range(0, batch, rows)
    outputs = [_attend(look, inputs.rows(slice(first, first + rows))) for first in starts]
    if len(outputs) == 1:
        return outputs[0]
    y, carries = zip(*outputs, strict=True)
    return torch.cat(y), None if carries[0] is None else torch.cat(carries)


def _divisor(batch: int, most: int) -> int:
    """The largest divisor of the batch up to `most`: all parts have one size, compiled once."""
    return next(rows for rows in range(min(batch, most), 0, -1) if batch % rows == 0)


def _attend(look: Look, inputs: pure.Inputs) -> pure.Output:
    key = Key(
        type(look),
        look.scheme.spec,
        look.weights.spec,
        look.scheme.width,
        look.scheme.heads,
        look.dropout,
        tuple(None if t is None else t.shape for t in inputs),
    )
    tensors = (*pure.weights_of(look).values(), *(t for t in inputs if t is not None))
    return pure.as_output(_BySeed.apply(key, *tensors))  # type: ignore[no-untyped-call]


class Program:
    """A look, and its gradient, compiled for one shape.

    Its own look has no weights: the weights are arguments and may belong to many seeds.
    """

    def __init__(self, key: Key) -> None:
        with torch.device("meta"):
            scheme = schemes.build(key.scheme, width=key.width, heads=key.heads)
            weights = weightings.build(key.weights, width=key.width, heads=key.heads)
            look = key.kind(scheme, weights, key.dropout)
        run = pure.function(look, [shape is not None for shape in key.shapes])

        def forward(*tensors: Tensor) -> Any:
            return run(*tensors)

        def pull(grads: tuple[Tensor, ...], *tensors: Tensor) -> Any:
            return pure.float_gradients(run, grads, tensors)

        self.forward, self.pull = _compiled(forward), _compiled(pull)

    def backward(self, grads: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> list[Any]:
        """The gradients of all inputs, None for those that have none."""
        return pure.all_gradients(self.pull(grads, *inputs), inputs)


def _compiled(function: Any) -> pure.PureLook:
    """The function compiled, with its own code object.

    Torch counts compilations for each code object and gives up after a few. All programs together
    would soon reach that limit.
    """
    code = function.__code__.replace()
    attributes = (function.__globals__, function.__name__, function.__defaults__)
    copy = FunctionType(code, *attributes, function.__closure__)
    options = OPTIONS if BACKEND == "inductor" else None
    return torch.compile(copy, backend=BACKEND, dynamic=False, options=options)


#: programs are made outside vmap: below it nothing may be drawn
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
        by_input = [  # unbound at once: the gradient of each alone would be a table of all
            [t] * size if axis is None else t.unbind(axis)
            for t, axis in zip(inputs, axes[1:], strict=True)
        ]
        by_seed = zip(*by_input, strict=True)
        outputs = [_BySeed.apply(key, *tensors) for tensors in by_seed]  # type: ignore[no-untyped-call]
        if isinstance(outputs[0], tuple):
            return tuple(map(torch.stack, zip(*outputs, strict=True))), (0,) * len(outputs[0])
        return torch.stack(outputs), 0
