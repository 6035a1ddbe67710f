"""Causal attention over short sequences: one program for a row and a head, everything on chip.

Training on short sequences means thousands of rows of a few dozen tokens. A whole score matrix
then fits on chip, so nothing is kept for the backward pass but q, k and v, which it reads again.
They are read where they lie (a view of one packed projection, say), and the output lies as
(b, t, h, d), so that the heads of a token are side by side.

Shapes: q, k, v, out (b, h, t, d) with t up to 128 and d up to 128, float32, bfloat16 or float16;
all sums in float32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from outlast.kernels.attention.reference import empty

MOST_TOKENS, MOST_WIDTH = 128, 128
#: tokens x width of a float32 tile beyond which the backward pass leaves the chip
MOST_WIDE = 64 * 64


@triton.jit
def _tile(base, tensor, row, head, at, stride_row, stride_head, stride_token, inside):
    """A (tokens, width) tile of a (b, h, t, d) tensor, in float32 or its own type."""
    start = tensor + row * stride_row + head * stride_head
    return tl.load(start + at * stride_token + base, mask=inside, other=0.0)


@triton.jit
def _weights(q, k, tokens, scale, TOKENS: tl.constexpr, PRECISION: tl.constexpr):
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    query, key = tl.arange(0, TOKENS)[:, None], tl.arange(0, TOKENS)[None, :]
    scores = tl.where((key <= query) & (key < tokens), scores, float("-inf"))
    p = tl.exp(scores - tl.max(scores, 1)[:, None])
    return p / tl.sum(p, 1)[:, None]


@triton.jit
def _attention_forward(
    q,
    k,
    v,
    out,
    q0,
    q1,
    q2,
    k0,
    k1,
    k2,
    v0,
    v1,
    v2,
    heads,
    tokens,
    scale,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    at, base = tl.arange(0, TOKENS)[:, None], tl.arange(0, WIDTH)[None, :]
    inside = (at < tokens) & (base < D)
    queries = _tile(base, q, row, head, at, q0, q1, q2, inside)
    keys = _tile(base, k, row, head, at, k0, k1, k2, inside)
    values = _tile(base, v, row, head, at, v0, v1, v2, inside)
    p = _weights(queries, keys, tokens, scale, TOKENS, PRECISION)
    y = tl.dot(p.to(values.dtype), values, input_precision=PRECISION)
    place = out + ((row * tokens + at) * heads + head) * D + base
    tl.store(place, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _attention_backward(
    d_out,
    q,
    k,
    v,
    dq,
    dk,
    dv,
    o0,
    o1,
    o2,
    q0,
    q1,
    q2,
    k0,
    k1,
    k2,
    v0,
    v1,
    v2,
    heads,
    tokens,
    across,
    scale,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    at, base = tl.arange(0, TOKENS)[:, None], tl.arange(0, WIDTH)[None, :]
    inside = (at < tokens) & (base < D)
    queries = _tile(base, q, row, head, at, q0, q1, q2, inside)
    keys = _tile(base, k, row, head, at, k0, k1, k2, inside)
    values = _tile(base, v, row, head, at, v0, v1, v2, inside)
    above = _tile(base, d_out, row, head, at, o0, o1, o2, inside)
    p = _weights(queries, keys, tokens, scale, TOKENS, PRECISION)
    place = (row * tokens + at) * across + head * D + base
    narrow = p.to(values.dtype)
    d_values = tl.dot(tl.trans(narrow), above, input_precision=PRECISION)
    tl.store(dv + place, d_values.to(dv.dtype.element_ty), mask=inside)
    dp = tl.dot(above, tl.trans(values), input_precision=PRECISION)
    ds = p * (dp - tl.sum(p * dp, 1)[:, None]) * scale
    narrow = ds.to(values.dtype)
    d_queries = tl.dot(narrow, keys, input_precision=PRECISION)
    tl.store(dq + place, d_queries.to(dq.dtype.element_ty), mask=inside)
    d_keys = tl.dot(tl.trans(narrow), queries, input_precision=PRECISION)
    tl.store(dk + place, d_keys.to(dk.dtype.element_ty), mask=inside)


def fits(q: Tensor, k: Tensor) -> bool:
    """Whether the kernel takes this: on a GPU, as many queries as keys, short and narrow enough.

    Not where float32 matmuls are to be exact: those have no fast path on chip.
    """
    if not q.is_cuda or q.shape != k.shape or q.shape[-2] > MOST_TOKENS or q.shape[-1] > MOST_WIDTH:
        return False
    if q.dtype == torch.float32:
        tokens, width = _padded(q)
        return tokens * width <= MOST_WIDE and torch.get_float32_matmul_precision() != "highest"
    return q.dtype in (torch.bfloat16, torch.float16)


def _padded(q: Tensor) -> tuple[int, int]:
    tokens, width = (max(16, triton.next_power_of_2(n)) for n in q.shape[-2:])
    return tokens, width


def _options(q: Tensor) -> dict[str, Any]:
    tokens, width = _padded(q)
    exact = torch.get_float32_matmul_precision() == "highest"
    return {
        "D": q.shape[-1],
        "WIDTH": width,
        "TOKENS": tokens,
        "PRECISION": "ieee" if exact else "tf32",
        "num_warps": 4 if tokens <= 64 and width <= 64 else 8,
    }


def _readable(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d)) v over the keys at or before each query."""
    q, k, v = (_readable(t) for t in (q, k, v))
    b, h, t, d = q.shape
    out = empty(q)
    strides = (s for tensor in (q, k, v) for s in tensor.stride()[:3])
    _attention_forward[(b * h,)](q, k, v, out, *strides, h, t, d**-0.5, **_options(q))
    return out


def backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    dq, dk, dv = (empty(q) for _ in range(3))
    _run_backward(d_out, q, k, v, dq, dk, dv)
    return dq, dk, dv


def views(packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v (b, h, t, d) of one projection (b, t, 3, h, d)."""
    q, k, v = packed.permute(2, 0, 3, 1, 4).unbind()
    return q, k, v


def backward_packed(d_out: Tensor, packed: Tensor) -> Tensor:
    """The gradient of the one projection that q, k and v are views of, written in place."""
    d_packed = torch.empty_like(packed, memory_format=torch.contiguous_format)
    _run_backward(d_out, *views(packed), *views(d_packed))
    return d_packed


def _run_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, dq: Tensor, dk: Tensor, dv: Tensor
) -> None:
    """The three gradients lie alike: rows, tokens and heads of one tensor, perhaps with a gap."""
    d_out, q, k, v = (_readable(t) for t in (d_out, q, k, v))
    b, h, t, d = q.shape
    strides = (s for tensor in (d_out, q, k, v) for s in tensor.stride()[:3])
    across = dq.stride(2)
    grid = (b * h,)
    _attention_backward[grid](
        d_out, q, k, v, dq, dk, dv, *strides, h, t, across, d**-0.5, **_options(q)
    )
