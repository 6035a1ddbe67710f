"""Inputs of the ops in `op_cases.py`, and what each op should give, in torch's own operations.

A function of inputs takes a shape and a seed. It gives the tensors that an op takes, in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernel_cases import draw, lstm_inputs
from outlast.kernels.attention.reference import attend as explicit_attention
from outlast.kernels.entmax import entmax15
from outlast.kernels.tra import reference as tra_reference
from outlast.kernels.tra.checks import check, real_keys
from tra_cases import Case as TraCase

Tensors = list[Tensor | None]


# ---- pointwise -----------------------------------------------------------------------------------


def bias_tensors(*shape: int, seed: int = 0) -> Tensors:
    return [2 * draw(*shape, seed=seed + 1), draw(shape[0], shape[-1], seed=seed + 2)]


def glu(z: Tensor, bias: Tensor) -> Tensor:
    value, gate = (z + bias[:, None]).chunk(2, -1)
    return value * F.silu(gate)


# ---- heads ---------------------------------------------------------------------------------------


def packed_heads(b: int, t: int, h: int, d: int, seed: int = 0) -> Tensors:
    return [3 * draw(b, t, 3, h, d, seed=seed + 1)]


def normed(packed: Tensor) -> list[Tensor]:
    q, k, v = (t.transpose(1, 2) for t in packed.unbind(2))
    return [*(t / (t.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k)), v]


def heads_and_angles(shared: bool) -> Callable[..., Tensors]:
    """Angles for all rows of the batch, or for every two of them."""

    def tensors(b: int, t: int, h: int, d: int, seed: int = 0) -> Tensors:
        angles = 3 * draw(1 if shared or b % 2 else b // 2, t, d // 2, seed=seed + 5)
        return [draw(b, t, 3, h, d, seed=seed + 1), angles.cos(), angles.sin()]

    return tensors


def rotated(packed: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
    """By complex numbers."""
    q, k, v = (t.transpose(1, 2) for t in packed.unbind(2))
    turns = torch.complex(cos, sin).repeat_interleave(len(packed) // len(cos), 0)[:, None]
    pairs = [torch.complex(*x.chunk(2, -1)) * turns for x in (q, k)]
    return [*(torch.cat([p.real, p.imag], -1) for p in pairs), v]


# ---- losses --------------------------------------------------------------------------------------

IGNORE, PARTS = -100, 3


def token_losses(*shape: int, seed: int = 0) -> Tensors:
    """Half the tokens ask nothing, some that ask belong to no part, the last part has none."""
    *lead, classes = shape
    generator = torch.Generator().manual_seed(seed + 1)
    targets = torch.randint(classes, lead, generator=generator)
    targets[torch.rand(lead, generator=generator) < 0.5] = IGNORE
    part = torch.randint(-1, PARTS - 1, lead, generator=generator)
    return [3 * draw(*shape, seed=seed + 2), targets, part]


def means_by_part(logits: Tensor, targets: Tensor, part: Tensor) -> list[Tensor]:
    loss = F.cross_entropy(logits.movedim(-1, 1), targets, ignore_index=IGNORE, reduction="none")
    right = (logits.argmax(-1) == targets).to(loss.dtype)
    masks = [(part == index).to(loss.dtype) for index in range(PARTS)]
    counts = torch.stack([mask.sum((1, 2)).clamp_min(1) for mask in masks], 1)
    means = [
        torch.stack([(value * mask).sum((1, 2)) for mask in masks], 1) / counts
        for value in (loss, right)
    ]
    return [*means, counts]


# ---- LSTM ----------------------------------------------------------------------------------------


def recurrence(
    projected: Tensor, bias: Tensor, weight: Tensor, h0: Tensor, c0: Tensor
) -> list[Tensor]:
    """By torch's LSTM of each seed, with the identity as input matrix."""
    identity = torch.eye(projected.shape[-1], dtype=projected.dtype)
    rows = zip(projected, bias, weight, h0, c0, strict=True)
    return [
        torch.stack(out) for out in zip(*(layer(x, identity, *r) for x, *r in rows), strict=True)
    ]


def layer(
    x: Tensor, weight_in: Tensor, bias: Tensor, weight: Tensor, h0: Tensor, c0: Tensor
) -> list[Tensor]:
    """One seed by torch's own LSTM."""
    weights = [weight_in, weight, bias, torch.zeros_like(bias)]
    hidden, h, c = torch.lstm(x, (h0[None], c0[None]), weights, True, 1, 0.0, True, False, True)
    return [hidden, h[0], c[0]]


def layer_tensors(steps: int, rows: int, width: int, width_in: int, seed: int = 0) -> Tensors:
    _, *others = lstm_inputs(steps, rows, width, seed=seed)
    weight_in = draw(4 * width, width_in, seed=seed + 6) * width_in**-0.5
    return [draw(rows, steps, width_in, seed=seed + 7), weight_in, *others]


# ---- linear maps ---------------------------------------------------------------------------------


def linear_tensors(biased: bool) -> Callable[..., Tensors]:
    def tensors(rows: int, k: int, out: int, seed: int = 0) -> Tensors:
        bias = draw(out, seed=seed + 3) if biased else None
        return [draw(rows, k, seed=seed + 1), draw(out, k, seed=seed + 2), bias]

    return tensors


# ---- attention -----------------------------------------------------------------------------------

BIASES = {"no bias": 0, "one for all rows": 1, "one for each row": 3}
# queries, keys: a whole sequence, one token, a token after a cache, a chunk after a cache
LENGTHS = ((6, 6), (1, 1), (1, 6), (4, 6), (5, 6))


def attention_tensors(queries: int, keys: int, bias: str, seed: int = 0) -> Tensors:
    shapes = [(queries, 1), (keys, 2), (keys, 3)]
    qkv: Tensors = [2 * draw(3, 2, t, 4, seed=seed + s) for t, s in shapes]
    rows = BIASES[bias]
    return [*qkv, draw(rows, 2, queries, keys, seed=seed + 4) if rows else None]


def split_attention(packed: Tensor) -> Tensor:
    return explicit_attention(*packed.permute(2, 0, 3, 1, 4))


def views_of_one(b: int, h: int, t: int, d: int, seed: int = 0) -> Tensors:
    """q, k and v as views of one projection, as attention makes them."""
    return [*draw(b, t, 3, h, d, seed=seed + 1).permute(2, 0, 3, 1, 4)]


def packed_qkv(b: int, h: int, t: int, d: int, seed: int = 0) -> Tensors:
    return [draw(b, t, 3, h, d, seed=seed + 1)]


TRA = TraCase(7, 9, batch=2, heads=2)


def tra_tensors(padded: bool) -> Callable[..., Tensors]:
    def tensors(seed: int = 0) -> Tensors:
        q, k, v, gate = TRA.inputs(torch.float64, seed=seed)
        lengths = torch.tensor([9, 8]) if padded else None
        return [q, k, v, gate.double(), *real_keys(lengths, "right", k)]

    return tensors


def tra_numbers(arguments: Tensors) -> tuple[Any, ...]:
    return (*check(*arguments[:4], 0.0, None, None, False, None), "cpu")


def tra_plain(*tensors: Tensor) -> Tensor:
    how = check(*tensors[:4], 0.0, None, None, False, None)
    return tra_reference.attend(*tensors, how)[0]


# ---- kernels of other libraries ------------------------------------------------------------------


def causal(scores: Tensor) -> Tensor:
    later = torch.ones(scores.shape[-2:]).triu(1).bool()
    return scores.masked_fill(later, -torch.inf)


def forgetting(q: Tensor, k: Tensor, v: Tensor, log_gates: Tensor) -> Tensor:
    kept = log_gates.cumsum(-1)
    scores = q @ k.mT / q.shape[-1] ** 0.5 + kept[..., :, None] - kept[..., None, :]
    return causal(scores).softmax(-1) @ v


def entmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return entmax15(causal(q @ k.mT / q.shape[-1] ** 0.5)) @ v


def library_tensors(gated: bool) -> Callable[..., Tensors]:
    def tensors(*shape: int, seed: int = 0) -> Tensors:
        gates = [F.logsigmoid(draw(*shape[:-1], seed=seed + 4))] if gated else []
        return [*(draw(*shape, seed=seed + s) for s in (1, 2, 3)), *gates]

    return tensors
