"""One call registers an op: schema, forward, backward, fake and vmap.

Every op of this package is `torch.ops.outlast.NAME`. The file that registers it reads like a page:
the public function, then what runs forward and backward, then one `register_op` for each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

import torch

from outlast.kernels.vmap_rules import VmapRule, fold_seeds

P = ParamSpec("P")
R = TypeVar("R")

# the older way to define an op: `torch.library.custom_op` loads torch's whole compiler on its
# first call, which takes longer than many a small run
library = torch.library.Library("outlast", "FRAGMENT")
#: the name of every op that is registered, in the order of registration
OPS: list[str] = []


def register_op(
    name: str,
    forward: Callable[P, R],
    *,
    fake: Callable[..., Any] | None = None,
    backward: Callable[..., Any] | None = None,
    save: Callable[..., None] | None = None,
    vmap: VmapRule = fold_seeds,
    schema: str | None = None,
) -> Callable[P, R]:
    """Register `outlast::name` and return it; it is called as `forward` is.

    Args:
        name: The op's name, unique among the ops of this package.
        forward: What the op computes. Its annotations are the op's schema.
        fake: Same arguments as `forward`; empty tensors with the shapes, dtypes and strides of the
            results. None: the op is a composite, and torch looks through it for fakes and
            gradients.
        backward: `(ctx, *gradients of the results)` to the gradients of all arguments, None for
            those that have none.
        save: `(ctx, inputs, output)`, run after `forward`: what `backward` will need.
        vmap: `(op, info, axes, *arguments)` to results and their axes. By default the vmapped axis
            is folded into the leading axis of every tensor.
        schema: Arguments and results in torch's notation, for a `forward` that takes `*args`.
    """
    schema = schema or torch.library.infer_schema(forward, mutates_args=())
    library.define(name + schema)
    kind = "CompositeImplicitAutograd" if fake is None else "CompositeExplicitAutograd"
    library.impl(name, forward, kind)
    op, full_name = getattr(torch.ops.outlast, name), f"outlast::{name}"
    if fake is not None:
        torch.library.register_fake(full_name, fake, lib=library)
    if backward is not None:
        torch.library.register_autograd(full_name, backward, setup_context=save, lib=library)
    torch.library.register_vmap(full_name, partial(vmap, op), lib=library)
    OPS.append(name)
    return cast("Callable[P, R]", op)


def save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """A `save` for ops whose `backward` needs all inputs and nothing else; all are tensors."""
    ctx.save_for_backward(*inputs)
