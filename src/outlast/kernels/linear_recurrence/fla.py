"""`decayed_sum` and `delta_rule` by the kernels of flash-linear-attention (`fla-core`).

They are taken on a GPU where matmuls are in bfloat16 (autocast), and where the environment variable
``OUTLAST_LIBRARIES`` is ``on``. Their block sizes are chosen by timing them, so that two runs may
differ in their last bits. States, decays and betas are float32. Under vmap seeds are more batch.

Parts of fla are called, not its functions with a gradient: those know of no vmap. One part of the
backward pass, `chunk_bwd_dqkwg`, is wrong on a Hopper GPU with a Triton from 3.4 to 3.7.0, and fla
refuses it there (its issue 640). There `read_gradients` takes its place, in torch's matmuls.

Shapes are those of fla (b rows, t tokens, h heads; keys d wide, values e wide)::

    q, k               [b, t, h, d]
    v, y               [b, t, h, e]
    beta, log_decay    [b, t, h]
    state              [b, h, d, e]

Written against fla-core 0.6.0.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.kernels import libraries
from outlast.kernels.dispatch import matmul_dtype
from outlast.kernels.linear_recurrence.chunks import at_least_single
from outlast.kernels.vmap_rules import fold_seeds

#: tokens of a chunk
CHUNK = 64
#: widths of heads: the widest, and what each is a multiple of (values are padded to it)
WIDEST, STEP = 256, 8


def taken(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernels can be taken for q, k, v [batch, heads, tokens, width]."""
    why = libraries.barred("fla")
    if why is None and (not v.is_cuda or matmul_dtype(v) != torch.bfloat16):
        why = "it is for bfloat16 on a GPU"
    if why is None and (q.shape[-1] % STEP or not 2 * STEP <= q.shape[-1] <= WIDEST):
        why = f"the width of a key is no multiple of {STEP} from {2 * STEP} to {WIDEST}"
    if why is None and v.shape[-2] < CHUNK:
        why = f"there are fewer than {CHUNK} tokens"
    return libraries.told("fla", why)


def decayed_sum(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """As `outlast.kernels.linear_recurrence.decayed_sum`; outputs are in bfloat16."""
    return _with_heads_first(_DecayedSum, (q, k, v), (log_decay,), state)


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """As `outlast.kernels.linear_recurrence.delta_rule`; outputs are in bfloat16."""
    return _with_heads_first(_DeltaRule, (q, k, v), (beta, log_decay), state)


def _with_heads_first(
    function: type[_Recurrence], qkv: tuple[Tensor, ...], gates: tuple[Tensor, ...], state: Tensor
) -> tuple[Tensor, Tensor]:
    """Turn the axes, give each head its own keys, and pad the values."""
    v = qkv[-1]
    axes, width = v.shape[:3], v.shape[-1]
    missing = -width % STEP
    dtype = matmul_dtype(v)
    wide = (F.pad(x, (0, missing)) if x is v and missing else x for x in qkv)
    turned = [x.to(dtype).expand(*axes, -1).transpose(1, 2) for x in wide]
    turned += [x.float().expand(*axes, 1).squeeze(-1).transpose(1, 2) for x in gates]
    y, state, *_ = function.run(*turned, F.pad(state.float(), (0, missing)))
    return y.transpose(1, 2)[..., :width], state[..., :width]


# ---- a function with a gradient for each recurrence; vmap folds seeds into the batch -------------


class _Folded(torch.autograd.Function):
    @classmethod
    def run(cls, *tensors: Tensor) -> Any:
        return cls.apply(*tensors)  # type: ignore[no-untyped-call]

    @classmethod
    def vmap(cls, info: Any, axes: tuple[int | None, ...], *args: Any) -> Any:
        return fold_seeds(cls.run, info, axes, *args)


class _Recurrence(_Folded):
    """Outputs, the last state, and what else the backward pass needs."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs, *output[2:])
        ctx.mark_non_differentiable(*output[2:])


class _Gradient(_Folded):
    """Without a derivative of its own."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        more = f"{libraries.SWITCH}=off has more"
        raise NotImplementedError(f"fla's recurrences have first derivatives only; {more}")


class _DecayedSum(_Recurrence):
    @staticmethod
    def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
        return decayed_forward(*(x.contiguous() for x in inputs))

    @staticmethod
    def backward(ctx: Any, d_y: Tensor, d_state: Tensor, *_: Tensor) -> Any:
        return _DecayedSumGradient.run(d_y, d_state, *ctx.saved_tensors)


class _DecayedSumGradient(_Gradient):
    @staticmethod
    def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
        return decayed_backward(*(x.contiguous() for x in inputs))


class _DeltaRule(_Recurrence):
    @staticmethod
    def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
        return delta_forward(*(x.contiguous() for x in inputs))

    @staticmethod
    def backward(ctx: Any, d_y: Tensor, d_state: Tensor, *_: Tensor) -> Any:
        return _DeltaRuleGradient.run(d_y, d_state, *ctx.saved_tensors)


class _DeltaRuleGradient(_Gradient):
    @staticmethod
    def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
        return delta_backward(*(x.contiguous() for x in inputs))


# ---- what is run, of contiguous tensors ----------------------------------------------------------


def decayed_forward(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, ...]:
    """Outputs, the last state, and the sums of `log_decay` over each chunk so far."""
    from fla.ops.simple_gla.chunk import chunk_simple_gla_fwd

    sums = _sums(log_decay)
    y, last = chunk_simple_gla_fwd(
        q, k, v, g=sums, scale=1.0, initial_state=state, output_final_state=True, chunk_size=CHUNK
    )
    return y, last, sums


def decayed_backward(
    d_y: Tensor,
    d_state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    state: Tensor,
    sums: Tensor,
) -> tuple[Tensor, ...]:
    """The gradients of q, k, v, log_decay and state."""
    from fla.ops.common.chunk_h import chunk_bwd_dh, chunk_fwd_h
    from fla.ops.common.chunk_o import chunk_bwd_dv

    size: dict[str, Any] = {"chunk_size": CHUNK}
    before, _ = chunk_fwd_h(k, v, g=sums, h0=state, states_in_fp32=True, **size)
    d_before, d_state = chunk_bwd_dh(
        q, k, v, d_y, state, d_state, 1.0, g=sums, states_in_fp32=True, **size
    )
    dq, dk, _, d_sums = read_gradients(q, k, v, d_y, before, d_before, sums)
    dv = chunk_bwd_dv(q, k, d_y, d_before, g=sums, scale=1.0, **size)
    return dq, dk, dv, _sums(d_sums, reverse=True), d_state


def delta_forward(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, ...]:
    """Outputs, the last state, sums as above, and the inverse of each chunk's system."""
    from fla.ops.common.chunk_delta_h import chunk_gated_delta_rule_fwd_h
    from fla.ops.common.chunk_o import chunk_fwd_o
    from fla.ops.gated_delta_rule.chunk_fwd import chunk_gated_delta_rule_fwd_intra

    sums = _sums(log_decay)
    size: dict[str, Any] = {"chunk_size": CHUNK}
    reads, values, inverse = chunk_gated_delta_rule_fwd_intra(k, v, sums, beta, **size)
    before, values, last = chunk_gated_delta_rule_fwd_h(
        k, reads, values, g=sums, initial_state=state, output_final_state=True, **size
    )
    y = chunk_fwd_o(q, k, values, before, g=sums, scale=1.0, **size)
    return y, last, sums, inverse


def delta_backward(
    d_y: Tensor,
    d_state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor,
    state: Tensor,
    sums: Tensor,
    inverse: Tensor,
) -> tuple[Tensor, ...]:
    """The gradients of q, k, v, beta, log_decay and state."""
    from fla.ops.common.chunk_delta_h import (
        chunk_gated_delta_rule_bwd_dhu,
        chunk_gated_delta_rule_fwd_h,
    )
    from fla.ops.common.chunk_o import chunk_bwd_dv_local
    from fla.ops.gated_delta_rule.wy_fast import prepare_wy_repr_bwd, recompute_w_u_fwd

    size: dict[str, Any] = {"chunk_size": CHUNK}
    reads, values = recompute_w_u_fwd(k, v, beta, inverse, g=sums)
    before, values, _ = chunk_gated_delta_rule_fwd_h(
        k, reads, values, g=sums, initial_state=state, **size
    )
    d_values = chunk_bwd_dv_local(q, k, d_y, g=sums, scale=1.0, **size)
    d_before, d_state, d_values = chunk_gated_delta_rule_bwd_dhu(
        q, k, reads, d_y, d_values, g=sums, h0=state, dht=d_state, scale=1.0, **size
    )
    dq, dk, d_reads, d_sums = read_gradients(
        q, k, values, d_y, before, d_before, sums, reads, d_values
    )
    more_dk, dv, d_beta, more_d_sums = prepare_wy_repr_bwd(
        k, v, beta, inverse, d_reads, d_values, g=sums
    )
    return dq, dk + more_dk, dv, d_beta, _sums(d_sums + more_d_sums, reverse=True), d_state


def _sums(log_decay: Tensor, reverse: bool = False) -> Tensor:
    """Sums within chunks, as powers of 2; or the gradient of that."""
    from fla.ops.utils import chunk_local_cumsum
    from fla.ops.utils.constant import RCP_LN2

    sums: Tensor = chunk_local_cumsum(
        log_decay, chunk_size=CHUNK, reverse=reverse, scale=None if reverse else RCP_LN2
    )
    return sums


def read_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    d_y: Tensor,
    before: Tensor,
    d_before: Tensor,
    sums: Tensor,
    reads: Tensor | None = None,
    d_values: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """The gradients of q, k, reads and sums: fla's `chunk_bwd_dqkwg`, where that is right.

    Args:
        q: [b, t, h, d].
        k: [b, t, h, d].
        v: [b, t, h, e].
        d_y: [b, t, h, e].
        before: States before each chunk, [b, chunks, h, d, e].
        d_before: The gradient of the states after each chunk, likewise.
        sums: [b, t, h].
        reads: [b, t, h, d], what the values of the delta rule take from the state.
        d_values: [b, t, h, e], the gradient of those values.
    """
    from fla.ops.common import chunk_o

    late = chunk_o.TRITON_ABOVE_3_4_0 and not chunk_o.TRITON_ABOVE_3_7_1
    if not (late and chunk_o.IS_NVIDIA_HOPPER):
        gradients: tuple[Tensor, Tensor, Tensor | None, Tensor] = chunk_o.chunk_bwd_dqkwg(
            q, k, v, d_y, before, d_before, reads, sums, None, d_values, 1.0, chunk_size=CHUNK
        )
        return gradients
    return _read_gradients(q, k, v, d_y, before, d_before, sums, reads, d_values)


def _read_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    d_y: Tensor,
    before: Tensor,
    d_before: Tensor,
    sums: Tensor,
    reads: Tensor | None,
    d_values: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """`read_gradients` by torch's matmuls."""
    tokens, dtype = q.shape[1], q.dtype
    q, k, v, d_y = (_cut(x) for x in (q, k, v, d_y))
    # after the last token nothing decays
    padded = F.pad(sums.mT, (0, -tokens % CHUNK), mode="replicate").mT
    g = padded.unflatten(1, (-1, CHUNK)).transpose(2, 3).unsqueeze(-1)
    kept, state_kept = (g[..., -1:, :] - g).exp2(), g[..., -1:, :].exp2()
    pairs = (g - g.mT).tril().exp2().tril()
    d_scores = (_matmul(d_y, v.mT) * pairs).to(dtype)
    dq = _matmul(d_y, before.to(dtype).mT) * g.exp2() + _matmul(d_scores, k)
    dk_of_state = _matmul(v, d_before.to(dtype).mT) * kept
    dk = dk_of_state + _matmul(d_scores.mT, q)
    d_sums = (dq * q - dk * k).sum(-1)
    of_end = (at_least_single(before) * at_least_single(d_before)).sum((-1, -2)) * state_kept[
        ..., 0, 0
    ]
    of_end = of_end + (dk_of_state * k).sum((-1, -2))
    d_sums = d_sums + F.pad(of_end.unsqueeze(-1), (CHUNK - 1, 0))
    if tokens % CHUNK:  # that of the end belongs to the last token
        last = tokens % CHUNK - 1
        d_sums[:, -1, :, last] += d_sums[:, -1, :, last + 1 :].sum(-1)
    d_reads = None
    if d_values is not None:
        d_reads = _join(-_matmul(_cut(d_values), before.to(dtype).mT), tokens).to(dtype)
    d_sums = _join(d_sums.unsqueeze(-1), tokens).squeeze(-1)
    return _join(dq, tokens).to(dtype), _join(dk, tokens).to(dtype), d_reads, d_sums


def _matmul(one: Tensor, two: Tensor) -> Tensor:
    """Matmuls whose sums are not rounded to 16 bit at the end."""
    if one.dtype.itemsize > 2:
        return one @ two
    flat = torch.bmm(one.flatten(0, 2), two.flatten(0, 2), out_dtype=torch.float32)
    return flat.unflatten(0, one.shape[:3])


def _cut(x: Tensor) -> Tensor:
    """x [b, t, h, d] as [b, chunks, h, CHUNK, d], with zeros after the last token."""
    missing = -x.shape[1] % CHUNK
    x = F.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x
    return x.unflatten(1, (-1, CHUNK)).transpose(2, 3).contiguous()


def _join(x: Tensor, tokens: int) -> Tensor:
    """The inverse of `_cut`."""
    return x.transpose(2, 3).flatten(1, 2)[:, :tokens].contiguous()
