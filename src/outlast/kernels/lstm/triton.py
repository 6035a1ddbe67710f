"""The LSTM recurrence fused over time: dozens of seeds in the time of one.

Two kernels, one interface: `resident` holds the recurrent matrix on chip, `streamed` reads it at
every step and takes what the other cannot: widths above 128, and products in full float32. Either
way a program walks through the whole sequence, and all weight gradients are large products
outside the time loop. Shapes are those of `reference`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import triton
from torch import Tensor

from outlast.kernels.lstm import resident, streamed

ROWS = 16


def fits(projected: Tensor, weight: Tensor) -> bool:
    """Whether a fused kernel can take this: on a GPU, float32, not too wide."""
    wide = weight.shape[-1] > streamed.MOST_UNITS
    return projected.is_cuda and projected.dtype == torch.float32 and not wide


def kernel(width: int) -> tuple[ModuleType, dict[str, Any]]:
    """Which kernel runs at this width and torch's present precision, and its options."""
    units = max(16, triton.next_power_of_2(width))
    sizes = {"D": width, "UNITS": units, "ROWS": ROWS, "num_warps": 4 if units <= 64 else 8}
    exact = torch.get_float32_matmul_precision() == "highest"
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
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.forward`."""
    seeds, batch, steps, _ = projected.shape
    bias, weight, projected = _dense(bias), _dense(weight), projected.contiguous()
    hidden = projected.new_empty(seeds, batch, steps, weight.shape[-1])
    cell, gates = torch.empty_like(hidden), torch.empty_like(projected)
    module, options = kernel(weight.shape[-1])
    module.forward[(seeds, triton.cdiv(batch, ROWS))](
        projected,
        bias,
        weight,
        h0.contiguous(),
        c0.contiguous(),
        hidden,
        cell,
        gates,
        steps,
        batch,
        bias.stride(0),
        weight.stride(0),
        **options,
    )
    return hidden, cell, gates


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
    d_gates, d_h0, d_c0 = torch.empty_like(gates), torch.empty_like(h0), torch.empty_like(c0)
    module, options = kernel(weight.shape[-1])
    module.backward[(seeds, triton.cdiv(batch, ROWS))](
        d_hidden.contiguous(),
        d_last.contiguous(),
        weight,
        c0.contiguous(),
        cell,
        gates,
        d_gates,
        d_h0,
        d_c0,
        steps,
        batch,
        weight.stride(0),
        **options,
    )
    return d_gates, d_gates.sum((1, 2)), _d_weight(d_gates, h0, hidden), d_h0, d_c0


def _d_weight(d_gates: Tensor, h0: Tensor, hidden: Tensor) -> Tensor:
    """The gate gradients times the state before them, without copying the state.

    All rows laid end to end, each state stands one place before the gates it feeds. That is wrong
    only where one row ends and the next begins; those terms are taken out again.
    """
    wide, narrow = d_gates.flatten(1, 2), hidden.flatten(1, 2)
    shifted = torch.bmm(wide[:, 1:].mT, narrow[:, :-1])
    first, last = d_gates[:, :, 0], hidden[:, :, -1]
    return shifted + torch.bmm(first.mT, torch.cat([h0[:, :1], h0[:, 1:] - last[:, :-1]], 1))
