"""A whole LSTM layer, the product with its inputs included: cuDNN's for one seed where that wins.

Our kernel is made for many seeds in one call. One seed alone, with or without vmap around it, goes
through `torch.lstm`, whose gradients are torch's; more than one never do. `lstm_layer` is a
composite (autograd sees through it) whose only addition is a vmap rule.

The state is float32 at least, as ever. One layer without dropout has the same bits for the same
call, gradients included (a test holds cuDNN to it), so a run that is resumed stays the same; our
kernel's differ in their rounding. cuDNN's products are of ten bits unless torch's setting
``torch.backends.cudnn.rnn.fp32_precision`` is another, so it is left out where torch is asked for
exact products and cuDNN is not. There are first derivatives only, which torch says itself.

``OUTLAST_LSTM=fused`` is never cuDNN, ``cudnn`` always for one seed, ``auto`` where it is faster.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from outlast.errors import bad_value
from outlast.kernels.choosing import FLOATS, product_type
from outlast.kernels.linear import over_last
from outlast.kernels.lstm import reference
from outlast.kernels.lstm.op import back_end, lstm, stacked

SWITCH = "OUTLAST_LSTM"
#: the widest layer of one seed that cuDNN is known to be faster at. Measured on an H200
#: (benchmarks/RESULTS.md), forward and backward, 64 to 1,024 steps of 16 and of 128 rows: cuDNN in
#: float32 takes 0.33 to 0.65 of our kernel's time at width 64, 0.56 to 0.78 at width 128; wider
#: ones have not been measured
WIDEST = 128

Found = tuple[Tensor, Tensor, Tensor]

_library = torch.library.Library("outlast", "FRAGMENT")
_library.define(
    "lstm_layer(Tensor x, Tensor weight_in, Tensor bias, Tensor weight, Tensor h0, Tensor c0) "
    "-> (Tensor hidden, Tensor last_h, Tensor last_c)"
)


def lstm_layer(
    x: Tensor, weight_in: Tensor, bias: Tensor, weight: Tensor, h0: Tensor, c0: Tensor
) -> Found:
    """All hidden states of one layer (b, t, d), in the type of x, and the last h and c (b, d).

    x (b, t, k) is the input and `weight_in` (4d, k) its matrix; the rest is as in `lstm`.
    """
    if cudnn_wins(x, weight):
        found: Found = torch.ops.outlast.lstm_layer(x, weight_in, bias, weight, h0, c0)
        return found
    hidden, h, c = lstm(over_last(x, weight_in), bias, weight, h0, c0)
    return hidden.to(x.dtype), h, c


def cudnn_wins(x: Tensor, weight: Tensor) -> bool:
    """Whether a single seed with these inputs and this recurrent matrix is better off with cuDNN.

    By width and type alone: it was ahead at every number of steps and rows that was measured.
    """
    asked = os.environ.get(SWITCH, "auto")
    if asked not in ("auto", "fused", "cudnn"):
        raise bad_value(SWITCH, asked, "auto | fused | cudnn")
    if asked == "fused":
        return False
    there = x.is_cuda and torch.backends.cudnn.is_available() and torch.backends.cudnn.enabled
    if asked == "cudnn":
        if not there:
            raise bad_value(
                SWITCH, asked, "auto | fused here; cudnn needs a GPU, and cuDNN enabled"
            )
        return True
    if not there or x.dtype not in FLOATS or not _exact_enough():
        return False
    without_kernel = back_end(weight, weight) is reference  # in float32, which is always tried
    return weight.shape[-1] <= WIDEST or without_kernel


def _exact_enough() -> bool:
    """Whether cuDNN's products are as exact as torch's are asked to be."""
    exact = torch.get_float32_matmul_precision() == "highest"
    return not exact or torch.backends.cudnn.rnn.fp32_precision != "tf32"  # type: ignore[attr-defined]


def _torchs(
    x: Tensor, weight_in: Tensor, bias: Tensor, weight: Tensor, h0: Tensor, c0: Tensor
) -> Found:
    """One seed by torch's own LSTM."""
    wide = torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        weights = _in_one_piece([w.to(wide) for w in (weight_in, weight, bias)])
        state = [_dense(s.unsqueeze(0), wide) for s in (h0, c0)]
        found = torch.lstm(
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
    hidden, h, c = found
    return hidden.transpose(0, 1).to(x.dtype), h.squeeze(0), c.squeeze(0)


def _in_one_piece(weights: list[Tensor]) -> list[Tensor]:
    """The same weights, and zeros for torch's second bias, end to end in memory of their own.

    So cuDNN reads them as they are; else it copies them one by one, and warns at every call.
    """
    parts = [*weights, torch.zeros_like(weights[-1])]
    piece = torch.cat([part.flatten() for part in parts])
    views = piece.split([part.numel() for part in parts])
    return [view.view(part.shape) for view, part in zip(views, parts, strict=True)]


def _dense(tensor: Tensor, kind: torch.dtype) -> Tensor:
    """In this type and in order, by one pass at most."""
    return tensor.to(kind, memory_format=torch.contiguous_format).contiguous()


def _by_seeds(
    info: Any, axes: tuple[int | None, ...], *given: Tensor
) -> tuple[Found, tuple[int, int, int]]:
    """One seed as if there were no vmap; more are our kernel's own axis."""
    size = info.batch_size
    if size == 1:
        alone = (
            t if axis is None else t.squeeze(axis) for t, axis in zip(given, axes, strict=True)
        )
        hidden, h, c = (f.unsqueeze(0) for f in torch.ops.outlast.lstm_layer(*alone))
        return (hidden, h, c), (0, 0, 0)
    x, weight_in, *others = (
        t.expand(size, *t.shape) if axis is None else t.movedim(axis, 0)
        for t, axis in zip(given, axes, strict=True)
    )
    kind = product_type(x)
    rows = x.flatten(1, 2).to(kind)
    projected = torch.ops.outlast.product(rows, weight_in.to(kind)).unflatten(1, x.shape[1:3])
    hidden, h, c = stacked(projected, *others)
    return (hidden.to(x.dtype), h, c), (0, 0, 0)


_library.impl("lstm_layer", _torchs, "CompositeImplicitAutograd")
torch.library.register_vmap("outlast::lstm_layer", _by_seeds, lib=_library)
