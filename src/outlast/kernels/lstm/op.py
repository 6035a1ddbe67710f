"""The LSTM recurrence as a torch op: fake, autograd and vmap rules around the back ends.

Under `vmap` the seeds become the op's own leading axis, so S seeds cost one call.
"""

from __future__ import annotations

import logging
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from outlast.kernels.choosing import has_triton
from outlast.kernels.derivatives import first_only
from outlast.kernels.folding import folded
from outlast.kernels.lstm import reference

log = logging.getLogger(__name__)

# the older way to define an op: `torch.library.custom_op` loads torch's whole compiler on its
# first call, which takes longer than many a small run
_library = torch.library.Library("outlast", "FRAGMENT")
_library.define(
    "lstm(Tensor projected, Tensor bias, Tensor weight, Tensor h0, Tensor c0) "
    "-> (Tensor hidden, Tensor last_h, Tensor last_c, Tensor cell, Tensor gates)"
)
_library.define(
    "lstm_backward(Tensor d_hidden, Tensor d_last, Tensor weight, Tensor h0, Tensor c0, "
    "Tensor hidden, Tensor cell, Tensor gates) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def back_end(projected: Tensor, weight: Tensor) -> ModuleType:
    """The module to run: the fused kernel where it can, else the reference."""
    if projected.is_cuda and has_triton():
        from outlast.kernels.lstm import triton as fused

        if fused.fits(projected, weight):
            return fused
    return reference


def form(projected: Tensor, weight: Tensor) -> str:
    """How the recurrence would run: `on chip`, `streamed`, or `step by step` by the reference."""
    if back_end(projected, weight) is reference:
        return "step by step"
    from outlast.kernels.lstm import resident, triton

    return "on chip" if triton.kernel(weight.shape[-1])[0] is resident else "streamed"


@cache  # once for each
def _tell(form: str, width: int, kind: torch.dtype) -> None:
    """Say where an LSTM on a GPU is not as fast as a narrower one would be, and what would do."""
    if form == "streamed":
        from outlast.kernels.lstm.resident import MOST_UNITS

        log.info(
            "an LSTM of width %d reads its weights at every step: they stay on chip up to width "
            "%d, where products are of ten bits (tf32, bf16)",
            width,
            MOST_UNITS,
        )
    elif form == "step by step":
        log.warning(
            "an LSTM of width %d in %s goes step by step, which is slow on a GPU: the fused kernel "
            "wants %s",
            width,
            str(kind).removeprefix("torch."),
            _wanted(),
        )


def _wanted() -> str:
    if not has_triton():
        return "Triton, which is not installed"
    from outlast.kernels.lstm.streamed import MOST_UNITS

    return f"widths up to {MOST_UNITS}, in float32 or bfloat16"


def lstm(
    projected: Tensor, bias: Tensor, weight: Tensor, h0: Tensor, c0: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """All hidden states of one layer (b, t, d), and the last hidden and cell state (b, d).

    `projected` (b, t, 4d) is the input's share of the gates and `bias` (4d) what is added to it,
    `weight` (4d, d) the recurrent matrix, `h0` and `c0` (b, d) the state before. The state is
    kept in float32 at least, whatever autocast is in force; a kernel that reads bfloat16 as it is
    gives all hidden states, but not the last, in bfloat16 too.
    """
    hidden, h, c = stacked(*(a.unsqueeze(0) for a in (projected, bias, weight, h0, c0)))
    return hidden.squeeze(0), h.squeeze(0), c.squeeze(0)


def stacked(
    projected: Tensor, bias: Tensor, weight: Tensor, h0: Tensor, c0: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`lstm` of many seeds, whose axis is the first of all."""
    wide = torch.promote_types(projected.dtype, torch.float32)
    if back_end(projected, weight) is reference:
        projected = projected.to(wide)
    others = (a.to(wide) for a in (bias, weight, h0, c0))
    hidden, h, c, *_ = torch.ops.outlast.lstm(projected, *others)
    return hidden, h, c


def _lstm(
    projected: Tensor, bias: Tensor, weight: Tensor, h0: Tensor, c0: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if projected.is_cuda:
        _tell(form(projected, weight), weight.shape[-1], projected.dtype)
    chosen = back_end(projected, weight)
    hidden, last, cell, gates = chosen.forward(projected, bias, weight, h0, c0)
    return hidden, last, cell[:, :, -1].clone(), cell, gates


def _lstm_backward(
    d_hidden: Tensor,
    d_last: Tensor,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor,
    hidden: Tensor,
    cell: Tensor,
    gates: Tensor,
) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = _left_by(hidden, weight, gates).backward(
        d_hidden, d_last, weight, h0, c0, hidden, cell, gates
    )
    return found


def _left_by(hidden: Tensor, weight: Tensor, gates: Tensor) -> ModuleType:
    """The module to go back by: torch's precision may be another than in the forward pass."""
    if gates.dtype != hidden.dtype:  # as the kernel on chip alone leaves them, of bfloat16
        from outlast.kernels.lstm import triton

        return triton
    return back_end(hidden, weight)


@torch.library.register_fake("outlast::lstm", lib=_library)
def _(
    projected: Tensor, bias: Tensor, weight: Tensor, h0: Tensor, c0: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    hidden = projected.new_empty(*projected.shape[:-1], weight.shape[-1])
    gates = projected.new_empty(projected.shape, dtype=reference.kept(projected.dtype))
    h, c = (s.new_empty(s.shape) for s in (h0, c0))
    return hidden, h, c, torch.empty_like(hidden, dtype=c0.dtype), gates


@torch.library.register_fake("outlast::lstm_backward", lib=_library)
def _(
    d_hidden: Tensor,
    d_last: Tensor,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor,
    hidden: Tensor,
    cell: Tensor,
    gates: Tensor,
) -> tuple[Tensor, ...]:
    bias = weight.new_empty(gates.shape[0], gates.shape[-1])
    shapes = (a.new_empty(a.shape) for a in (weight, h0, c0))
    return gates.new_empty(gates.shape, dtype=hidden.dtype), bias, *shapes


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    hidden, _, _, cell, gates = output
    ctx.save_for_backward(*inputs[2:], hidden, cell, gates)
    ctx.set_materialize_grads(False)  # no zeros as large as the gates


def _differentiate(
    ctx: Any, d_hidden: Tensor | None, d_h: Tensor | None, d_c: Tensor | None, *_: None
) -> tuple[Tensor, ...]:
    _, _, c0, hidden, _, _ = ctx.saved_tensors
    d_hidden = torch.zeros_like(hidden) if d_hidden is None else d_hidden
    if d_h is not None:  # the last h is the last hidden state once more
        d_hidden = torch.cat([d_hidden[:, :, :-1], (d_hidden[:, :, -1] + d_h).unsqueeze(2)], 2)
    d_c = torch.zeros_like(c0) if d_c is None else d_c
    return tuple(torch.ops.outlast.lstm_backward(d_hidden, d_c, *ctx.saved_tensors))


_refuse = first_only("the lstm kernel has", "try gru")


_library.impl("lstm", _lstm, "CompositeExplicitAutograd")
_library.impl("lstm_backward", _lstm_backward, "CompositeExplicitAutograd")
torch.library.register_autograd("outlast::lstm", _differentiate, setup_context=_save, lib=_library)
torch.library.register_autograd("outlast::lstm_backward", _refuse, lib=_library)
for _name in ("lstm", "lstm_backward"):
    torch.library.register_vmap(
        f"outlast::{_name}", folded(getattr(torch.ops.outlast, _name)), lib=_library
    )
