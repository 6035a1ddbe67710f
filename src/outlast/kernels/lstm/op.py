"""The LSTM recurrence as a torch op: fake, autograd and vmap rules around the back ends.

Under `vmap` the seeds become the op's own leading axis, so S seeds cost one call.
"""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from outlast.kernels.folding import fold, unfold
from outlast.kernels.lstm import reference

# the older way to define an op: `torch.library.custom_op` loads torch's whole compiler on its
# first call, which takes longer than many a small run
_library = torch.library.Library("outlast", "FRAGMENT")
_library.define(
    "lstm(Tensor projected, Tensor weight, Tensor h0, Tensor c0) -> (Tensor, Tensor, Tensor)"
)
_library.define(
    "lstm_backward(Tensor d_hidden, Tensor d_cell, Tensor weight, Tensor h0, Tensor c0, "
    "Tensor hidden, Tensor cell, Tensor gates) -> (Tensor, Tensor, Tensor, Tensor)"
)


def back_end(projected: Tensor, weight: Tensor) -> ModuleType:
    """The module to run: the fused kernel where it can, else the reference."""
    if projected.is_cuda and find_spec("triton") is not None:
        from outlast.kernels.lstm import triton as fused

        if fused.fits(projected, weight):
            return fused
    return reference


def lstm(projected: Tensor, weight: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden and cell states of one layer, time first.

    `projected` (t, b, 4d) is the input's share of the gates, `weight` (4d, d) the recurrent
    matrix, `h0` and `c0` (b, d) the state before; returns hidden and cell, each (t, b, d).
    The state is kept in float32 at least, whatever autocast is in force.
    """
    wide = torch.promote_types(projected.dtype, torch.float32)
    args = [a.to(wide).unsqueeze(0) for a in (projected, weight, h0, c0)]
    hidden, cell, _ = torch.ops.outlast.lstm(*args)
    return hidden.squeeze(0), cell.squeeze(0)


def _lstm(
    projected: Tensor, weight: Tensor, h0: Tensor, c0: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = back_end(projected, weight).forward(
        projected, weight, h0, c0
    )
    return found


def _lstm_backward(
    d_hidden: Tensor,
    d_cell: Tensor,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor,
    hidden: Tensor,
    cell: Tensor,
    gates: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor, Tensor] = back_end(gates, weight).backward(
        d_hidden, d_cell, weight, h0, c0, hidden, cell, gates
    )
    return found


@torch.library.register_fake("outlast::lstm", lib=_library)
def _(projected: Tensor, weight: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    hidden = projected.new_empty(*projected.shape[:-1], weight.shape[-1])
    return hidden, torch.empty_like(hidden), projected.new_empty(projected.shape)


@torch.library.register_fake("outlast::lstm_backward", lib=_library)
def _(
    d_hidden: Tensor,
    d_cell: Tensor,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor,
    hidden: Tensor,
    cell: Tensor,
    gates: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        gates.new_empty(gates.shape),
        weight.new_empty(weight.shape),
        h0.new_empty(h0.shape),
        c0.new_empty(c0.shape),
    )


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    _, weight, h0, c0 = inputs
    ctx.save_for_backward(weight, h0, c0, *output)


def _differentiate(ctx: Any, d_hidden: Tensor, d_cell: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.ops.outlast.lstm_backward(d_hidden, d_cell, *ctx.saved_tensors))


def _refuse(ctx: Any, *_: Tensor) -> tuple[Tensor, ...]:
    raise NotImplementedError("the lstm kernel has first derivatives only; try gru")


def _batched(op: Any) -> Any:
    def rule(info: Any, axes: tuple[int | None, ...], *args: Tensor) -> tuple[Any, Any]:
        size = info.batch_size
        out = op(*(fold(a, axis, size) for a, axis in zip(args, axes, strict=True)))
        return tuple(unfold(o, size) for o in out), (0,) * len(out)

    return rule


_library.impl("lstm", _lstm, "CompositeExplicitAutograd")
_library.impl("lstm_backward", _lstm_backward, "CompositeExplicitAutograd")
torch.library.register_autograd("outlast::lstm", _differentiate, setup_context=_save, lib=_library)
torch.library.register_autograd("outlast::lstm_backward", _refuse, lib=_library)
for _name in ("lstm", "lstm_backward"):
    torch.library.register_vmap(
        f"outlast::{_name}", _batched(getattr(torch.ops.outlast, _name)), lib=_library
    )
