"""The LSTM recurrence fused over time, with seeds as an axis of its own.

Two kernels, one interface: `resident` holds the recurrent matrix on chip, `streamed` reads it at
every step and takes what the other cannot: widths above 128, and matmuls in full float32. Either
way a program walks through the whole sequence, and all weight gradients are large matmuls
outside the time loop. Shapes are those of `reference`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import triton
from torch import Tensor

from outlast.kernels.lstm import reference, resident, streamed
from outlast.kernels.split_k import chunk_count

ROWS = 16


def fits(projected: Tensor, weight: Tensor) -> bool:
    """Whether a fused kernel can take this: on a GPU, float32, not too wide.

    Where the weights are on chip it may also be bfloat16; elsewhere the state passes through
    memory in the type of `projected`.
    """
    width = weight.shape[-1]
    if not projected.is_cuda or width > streamed.MOST_UNITS:
        return False
    half = projected.dtype == torch.bfloat16 and kernel(width)[0] is resident
    return half or projected.dtype == torch.float32


def kernel(width: int, on_chip: bool = False) -> tuple[ModuleType, dict[str, Any]]:
    """Which kernel runs at this width and torch's present precision, and its options.

    `on_chip`: the forward pass was, whatever the precision is by now.
    """
    units = max(16, triton.next_power_of_2(width))
    sizes = {"D": width, "UNITS": units, "ROWS": ROWS, "num_warps": 4 if units <= 64 else 8}
    exact = torch.get_float32_matmul_precision() == "highest" and not on_chip
    if not exact and units <= resident.MOST_UNITS:
        return resident, sizes
    # four gates at width 256 fill the shared memory of a Hopper card at 32
    chunk = min(32, units) if units <= 128 else 16
    options = {"CHUNK": chunk, "PRECISION": "ieee" if exact else "tf32", "num_stages": 3}
    return streamed, sizes | options | ({"num_warps": 4} if units <= 128 else {})


def _dense(weight: Tensor) -> Tensor:
    """The numbers of one seed side by side; seeds may lie apart, as they do in a table."""
    inner = weight[0].stride() == torch.empty(weight.shape[1:], device="meta").stride()
    return weight if inner else weight.contiguous()


def forward(
    projected: Tensor, bias: Tensor, weight: Tensor, h0: Tensor, c0: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.forward`; of a `projected` in bfloat16, hidden is too, and gates in float16."""
    seeds, batch, steps, _ = projected.shape
    bias, weight, projected = _dense(bias), _dense(weight), projected.contiguous()
    hidden = projected.new_empty(seeds, batch, steps, weight.shape[-1])
    cell = torch.empty_like(hidden, dtype=c0.dtype)
    gates = torch.empty_like(projected, dtype=reference.kept(projected.dtype))
    module, options = kernel(weight.shape[-1])
    least = 64 if projected.dtype == torch.float32 else 128
    if module is resident and options["UNITS"] >= least:  # measured on an H200
        options["num_warps"] *= 2  # more of them hide how long the exponentials take
    last = torch.empty_like(h0, memory_format=torch.contiguous_format)
    module.lstm_forward[(seeds, triton.cdiv(batch, ROWS))](
        projected,
        bias,
        weight,
        h0.contiguous(),
        c0.contiguous(),
        hidden,
        last,
        cell,
        gates,
        steps,
        batch,
        bias.stride(0),
        weight.stride(0),
        **options,
    )
    return hidden, last, cell, gates


def backward(
    d_hidden: Tensor,
    d_last: Tensor,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor,
    hidden: Tensor,
    cell: Tensor,
    gates: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `reference.backward`."""
    seeds, batch, steps, _ = gates.shape
    weight = _dense(weight)
    d_gates = torch.empty_like(gates, dtype=hidden.dtype)
    d_h0, d_c0 = (torch.empty_like(s, memory_format=torch.contiguous_format) for s in (h0, c0))
    module, options = kernel(weight.shape[-1], on_chip=gates.dtype != hidden.dtype)
    tiles = triton.cdiv(batch, ROWS)
    sums = weight.new_empty(seeds, tiles, gates.shape[-1])
    module.lstm_backward[(seeds, tiles)](
        d_hidden.contiguous(),
        d_last.contiguous(),
        weight,
        c0.contiguous(),
        cell,
        gates,
        d_gates,
        sums,
        d_h0,
        d_c0,
        steps,
        batch,
        weight.stride(0),
        **options,
    )
    d_bias = sums.sum(1) if module is resident else d_gates.sum((1, 2))
    return d_gates, d_bias, _d_weight(d_gates, h0, hidden).to(weight.dtype), d_h0, d_c0


def _d_weight(d_gates: Tensor, h0: Tensor, hidden: Tensor) -> Tensor:
    """The gate gradients times the state before them, without copying the state.

    All rows laid end to end, each state stands one place before the gates it feeds. That is wrong
    only where one row ends and the next begins; those terms are taken out again. The sum over rows
    is split into chunks, as in `kernels.split_k`.
    """
    seeds, batch, steps, _ = d_gates.shape
    count = chunk_count(seeds, batch * steps, d_gates.shape[-1], hidden.shape[-1], divides=batch)
    d_gates, hidden, h0 = (t.unflatten(1, (count, -1)).flatten(0, 1) for t in (d_gates, hidden, h0))
    shifted = torch.bmm(d_gates.flatten(1, 2)[:, 1:].mT, hidden.flatten(1, 2)[:, :-1])
    first, last = d_gates[:, :, 0], hidden[:, :, -1]
    instead = torch.cat([h0[:, :1], h0[:, 1:] - last[:, :-1]], 1)
    ends = torch.bmm(first.mT, instead.to(hidden.dtype))
    return (shifted + ends).unflatten(0, (seeds, count)).sum(1)
