"""The LSTM recurrence as a torch op.

Under `vmap` the seeds become the op's own leading axis, so S seeds cost one call.
"""

from __future__ import annotations

import logging
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from outlast.kernels.derivatives import first_only
from outlast.kernels.dispatch import has_triton
from outlast.kernels.lstm import reference
from outlast.kernels.register import register_op

log = logging.getLogger(__name__)


def back_end(projected: Tensor, weight: Tensor) -> ModuleType:
    """The module to run: the fused kernel where it can, else the reference."""
    if projected.is_cuda and has_triton():
        from outlast.kernels.lstm import triton

        if triton.fits(projected, weight):
            return triton
    return reference


def form(projected: Tensor, weight: Tensor) -> str:
    """How the recurrence would run: `on chip`, `streamed`, or `step by step` by the reference."""
    if back_end(projected, weight) is reference:
        return "step by step"
    from outlast.kernels.lstm import resident, triton

    return "on chip" if triton.kernel(weight.shape[-1])[0] is resident else "streamed"


@cache  # once for each
def _log_form(form: str, width: int, dtype: torch.dtype) -> None:
    """Log where an LSTM on a GPU is slower than a narrower one, and which one would be faster."""
    if form == "streamed":
        from outlast.kernels.lstm.resident import MOST_UNITS

        log.info(
            "an LSTM of width %d reads its weights at every step: they stay on chip up to width "
            "%d, where matmuls are tf32 or bf16",
            width,
            MOST_UNITS,
        )
    elif form == "step by step":
        log.warning(
            "an LSTM of width %d in %s goes step by step, which is slow on a GPU: the fused kernel "
            "wants %s",
            width,
            str(dtype).removeprefix("torch."),
            _kernel_needs(),
        )


def _kernel_needs() -> str:
    if not has_triton():
        return "Triton, which is not installed"
    from outlast.kernels.lstm.streamed import MOST_UNITS

    return f"widths up to {MOST_UNITS}, in float32 or bfloat16"


def lstm(
    projected: Tensor, bias: Tensor, weight: Tensor, h0: Tensor, c0: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The LSTM of one layer over a whole sequence.

    The state is kept in float32 at least, whatever autocast is in force. A kernel that reads
    bfloat16 as it is returns the hidden states in bfloat16 too, but not the last state.

    Args:
        projected: [B, T, 4 D], the input's share of the gates.
        bias: [4 D], added to it.
        weight: [4 D, D], the recurrent matrix.
        h0: [B, D], the hidden state before the first step.
        c0: [B, D], the cell state before the first step.

    Returns:
        All hidden states [B, T, D], and the last hidden and cell state, each [B, D].
    """
    hidden, h, c = stacked(*(a.unsqueeze(0) for a in (projected, bias, weight, h0, c0)))
    return hidden.squeeze(0), h.squeeze(0), c.squeeze(0)


def stacked(
    projected: Tensor, bias: Tensor, weight: Tensor, h0: Tensor, c0: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`lstm` of S seeds: all shapes have [S] before them."""
    wide = torch.promote_types(projected.dtype, torch.float32)
    if back_end(projected, weight) is reference:
        projected = projected.to(wide)
    others = (a.to(wide) for a in (bias, weight, h0, c0))
    hidden, h, c, *_ = lstm_op(projected, *others)
    return hidden, h, c


def _lstm(
    projected: Tensor, bias: Tensor, weight: Tensor, h0: Tensor, c0: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, last hidden and cell state; cell states and gates for the backward pass."""
    if projected.is_cuda:
        _log_form(form(projected, weight), weight.shape[-1], projected.dtype)
    module = back_end(projected, weight)
    hidden, last, cell, gates = module.forward(projected, bias, weight, h0, c0)
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    module = _forward_module(hidden, weight, gates)
    gradients: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = module.backward(
        d_hidden, d_last, weight, h0, c0, hidden, cell, gates
    )
    return gradients


def _forward_module(hidden: Tensor, weight: Tensor, gates: Tensor) -> ModuleType:
    """The module that ran forward: torch's matmul precision may have been changed since."""
    if gates.dtype != hidden.dtype:  # only the kernel on chip leaves them so, for bfloat16
        from outlast.kernels.lstm import triton

        return triton
    return back_end(hidden, weight)


def _empty_states(projected: Tensor, bias: Tensor, weight: Tensor, h0: Tensor, c0: Tensor) -> Any:
    hidden = projected.new_empty(*projected.shape[:-1], weight.shape[-1])
    gates = projected.new_empty(projected.shape, dtype=reference.kept(projected.dtype))
    h, c = (s.new_empty(s.shape) for s in (h0, c0))
    return hidden, h, c, torch.empty_like(hidden, dtype=c0.dtype), gates


def _empty_gradients(
    d_hidden: Tensor,
    d_last: Tensor,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor,
    hidden: Tensor,
    cell: Tensor,
    gates: Tensor,
) -> Any:
    bias = weight.new_empty(gates.shape[0], gates.shape[-1])
    others = (a.new_empty(a.shape) for a in (weight, h0, c0))
    return gates.new_empty(gates.shape, dtype=hidden.dtype), bias, *others


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
    return lstm_backward_op(d_hidden, d_c, *ctx.saved_tensors)


lstm_backward_op = register_op(
    "lstm_backward",
    _lstm_backward,
    fake=_empty_gradients,
    backward=first_only("the lstm kernel has", "try gru"),
)
lstm_op = register_op("lstm", _lstm, fake=_empty_states, backward=_differentiate, save=_save)
