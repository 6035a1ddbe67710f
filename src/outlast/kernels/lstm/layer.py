"""A whole LSTM layer, the matmul with its inputs included: cuDNN's for one seed where that wins.

Our kernel is made for many seeds in one call. One seed alone, with or without vmap around it, goes
through `torch.lstm`, whose gradients are torch's; more than one never do. `lstm_layer` is a
composite (autograd sees through it) whose only addition is a vmap rule.

The state is float32 at least. One layer without dropout has the same bits for the same call,
gradients included (a test holds cuDNN to it), so a resumed run stays the same; our kernel rounds
differently. cuDNN's matmuls are tf32 unless ``torch.backends.cudnn.rnn.fp32_precision`` is set to
something else. So cuDNN is not taken where torch is asked for exact matmuls and cuDNN is not. There
are first derivatives only; torch raises that error itself.

``OUTLAST_LSTM=fused`` never takes cuDNN, ``cudnn`` always does for one seed, ``auto`` does where it
is faster.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from outlast.errors import bad_value
from outlast.kernels.dispatch import FLOATS, matmul_dtype
from outlast.kernels.linear.op import batched_linear, over_last
from outlast.kernels.lstm import reference
from outlast.kernels.lstm.op import back_end, lstm, stacked
from outlast.kernels.register import register_op
from outlast.kernels.vmap_rules import lead

SWITCH = "OUTLAST_LSTM"
#: the widest layer of one seed that cuDNN is known to be faster at. Measured on an H200
#: (benchmarks/RESULTS.md), forward and backward, 64 to 1,024 steps of 16 and of 128 rows: cuDNN in
#: float32 takes 0.33 to 0.65 of our kernel's time at width 64, 0.56 to 0.78 at width 128; wider
#: ones have not been measured
WIDEST = 128


def lstm_layer(
    x: Tensor, weight_in: Tensor, bias: Tensor, weight: Tensor, h0: Tensor, c0: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One LSTM layer over a whole sequence.

    Args:
        x: [B, T, K], the input.
        weight_in: [4 D, K], its matrix.
        bias: [4 D].
        weight: [4 D, D], the recurrent matrix.
        h0: [B, D], the hidden state before the first step.
        c0: [B, D], the cell state before the first step.

    Returns:
        All hidden states [B, T, D] in the dtype of x, and the last h and c, each [B, D].
    """
    if cudnn_wins(x, weight):
        return lstm_layer_op(x, weight_in, bias, weight, h0, c0)
    hidden, h, c = lstm(over_last(x, weight_in), bias, weight, h0, c0)
    return hidden.to(x.dtype), h, c


def cudnn_wins(x: Tensor, weight: Tensor) -> bool:
    """Whether a single seed with these inputs and this recurrent matrix is better off with cuDNN.

    By width and type alone: it was ahead at every number of steps and rows that was measured.
    """
    switch = os.environ.get(SWITCH, "auto")
    if switch not in ("auto", "fused", "cudnn"):
        raise bad_value(SWITCH, switch, "auto | fused | cudnn")
    if switch == "fused":
        return False
    available = x.is_cuda and torch.backends.cudnn.is_available() and torch.backends.cudnn.enabled
    if switch == "cudnn":
        if not available:
            raise bad_value(
                SWITCH, switch, "auto | fused here; cudnn needs a GPU, and cuDNN enabled"
            )
        return True
    if not available or x.dtype not in FLOATS or not _exact_enough():
        return False
    without_kernel = back_end(weight, weight) is reference  # in float32, which is always tried
    return weight.shape[-1] <= WIDEST or without_kernel


def _exact_enough() -> bool:
    """Whether cuDNN's matmuls are as exact as torch's are asked to be."""
    exact = torch.get_float32_matmul_precision() == "highest"
    return not exact or torch.backends.cudnn.rnn.fp32_precision != "tf32"  # type: ignore[attr-defined]


def _torch_lstm(
    x: Tensor, weight_in: Tensor, bias: Tensor, weight: Tensor, h0: Tensor, c0: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One seed by torch's own LSTM."""
    wide = torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        weights = _in_one_piece([w.to(wide) for w in (weight_in, weight, bias)])
        state = [_dense(s.unsqueeze(0), wide) for s in (h0, c0)]
        hidden, h, c = torch.lstm(
            _dense(x.transpose(0, 1), wide),
            state,
            weights,
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=torch.is_grad_enabled(),
            bidirectional=False,
            batch_first=False,
        )
    return hidden.transpose(0, 1).to(x.dtype), h.squeeze(0), c.squeeze(0)


def _in_one_piece(weights: list[Tensor]) -> list[Tensor]:
    """The same weights, and zeros for torch's second bias, end to end in memory of their own.

    So cuDNN reads them as they are; else it copies them one by one, and warns at every call.
    """
    parts = [*weights, torch.zeros_like(weights[-1])]
    piece = torch.cat([part.flatten() for part in parts])
    views = piece.split([part.numel() for part in parts])
    return [view.view(part.shape) for view, part in zip(views, parts, strict=True)]


def _dense(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Contiguous in this dtype, by one pass at most."""
    return tensor.to(dtype, memory_format=torch.contiguous_format).contiguous()


def _by_seeds(
    op: Any, info: Any, axes: tuple[int | None, ...], *args: Tensor
) -> tuple[tuple[Tensor, ...], tuple[int, int, int]]:
    """The vmap rule: one seed as if there were no vmap; more are our kernel's own axis."""
    size = info.batch_size
    if size == 1:
        alone = (t if axis is None else t.squeeze(axis) for t, axis in zip(args, axes, strict=True))
        return tuple(result.unsqueeze(0) for result in op(*alone)), (0, 0, 0)
    x, weight_in, *others = (lead(t, axis, size) for t, axis in zip(args, axes, strict=True))
    dtype = matmul_dtype(x)
    rows = x.flatten(1, 2).to(dtype)
    projected = batched_linear(rows, weight_in.to(dtype)).unflatten(1, x.shape[1:3])
    hidden, h, c = stacked(projected, *others)
    return (hidden.to(x.dtype), h, c), (0, 0, 0)


lstm_layer_op = register_op("lstm_layer", _torch_lstm, vmap=_by_seeds)
