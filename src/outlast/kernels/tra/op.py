"""Threshold Relative Attention as a torch op.

Attention has no weights, so under `vmap` a stack of seeds is simply more batch. Under autocast
q, k and v take the lower precision and the gate keeps its own: it is multiplied by counts that run
into the thousands.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Literal, overload

import torch
from torch import Tensor

from outlast.arguments import check_flag
from outlast.errors import bad_value
from outlast.kernels.derivatives import backward_only, first_only
from outlast.kernels.dispatch import has_triton
from outlast.kernels.register import library, register_op
from outlast.kernels.tra import cpu, reference
from outlast.kernels.tra.checks import check, check_dense, check_word, real_keys
from outlast.kernels.tra.parts import Parts
from outlast.kernels.tra.setting import Setting

BACKENDS = ("triton", "cpu", "reference")
MORE = "kernels.tra.reference.attend has all"
_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor gate, Tensor? start, Tensor? stop, "
    "float threshold, float scale, int offset, float bound, float tolerance, "
    "bool sparse, bool split, str backend"
)
#: tensors of which torch itself knows all
_KINDS = (Tensor, torch.nn.Parameter)
#: how many of those are tensors, and where the numbers of `Setting` lie
_TENSORS, _NUMBERS = 6, slice(6, 13)
#: how many arguments the backward op has before those of the forward op
_FIRST = 5


def back_end(q: Tensor, name: str = "") -> ModuleType:
    """The module to run: the fused kernel where it can, else blocks of plain torch."""
    if name not in ("", *BACKENDS):
        raise bad_value("backend", name, " | ".join(BACKENDS))
    if name in ("cpu", "reference"):
        return {"cpu": cpu, "reference": reference}[name]
    if has_triton() and (q.is_cuda or name):
        from outlast.kernels.tra import triton

        obstacle = triton.obstacle(q)
        if obstacle is None:
            return triton
        if name:
            raise bad_value("backend", name, f"cpu | reference, because {obstacle}")
    elif name:
        raise bad_value("backend", name, "cpu | reference, because Triton is not installed")
    return cpu


def has_kernel(q: Tensor) -> bool:
    """Whether the fused kernel takes such queries; else it is blocks of plain torch."""
    check_dense("q", q)
    return q.is_cuda and back_end(q).__name__.endswith(".triton")


@overload
def threshold_relative_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    *,
    threshold: float = 0.0,
    scale: float | None = None,
    lengths: Tensor | None = None,
    padding: Literal["right", "left"] = "right",
    offset: int | None = None,
    normalised: bool = False,
    tolerance: float | None = None,
    sparse: bool = False,
    backend: str | None = None,
    return_parts: Literal[False] = False,
) -> Tensor: ...


@overload
def threshold_relative_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    *,
    threshold: float = 0.0,
    scale: float | None = None,
    lengths: Tensor | None = None,
    padding: Literal["right", "left"] = "right",
    offset: int | None = None,
    normalised: bool = False,
    tolerance: float | None = None,
    sparse: bool = False,
    backend: str | None = None,
    return_parts: Literal[True],
) -> Parts: ...


def threshold_relative_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    *,
    threshold: float = 0.0,
    scale: float | None = None,
    lengths: Tensor | None = None,
    padding: Literal["right", "left"] = "right",
    offset: int | None = None,
    normalised: bool = False,
    tolerance: float | None = None,
    sparse: bool = False,
    backend: str | None = None,
    return_parts: bool = False,
) -> Tensor | Parts:
    """Causal attention over the keys whose score passes a threshold, distance counted over those.

    Args:
        q: [B, H, Tq, D].
        k: [B, Hk, Tk, D]; the number of key heads Hk divides H (grouped queries).
        v: As `k`.
        gate: [B, H, Tq], at most 0: what one kept key of distance adds to a logit. That it is at
            most 0 is not checked; above 0 the result is not to be relied on.
        threshold: A key is kept if its scaled score is above this.
        scale: Of the scores, above 0; one over the root of the width by default.
        lengths: [B] whole numbers: how many of a row's keys are real; None: all of them. Numbers
            out of range are an error; on a GPU they are clamped.
        padding: Where the keys that are not real lie: after the real ones or before them. A query
            at the place of such a key, or past keys that end in padding, gives 0: a cache of rows
            of different lengths, which all go on at its end, is padded on the left.
        offset: The first query's position among the keys. By default the last query is at the
            last key, as after a cache.
        normalised: The rows of q and k have a root mean square of 1 (QK-norm), so the scores are
            bounded and no running maximum is needed. It is not checked.
        tolerance: The share of a row's weight that may be left out, so that reading can stop early
            under strong gates; needs `normalised`. None: exact. Only the fused kernel stops, and
            it then counts as kept what it read.
        sparse: Few keys are kept: look at every tile and skip the value matmuls of empty ones.
        backend: triton | cpu | reference; by default the fastest that can.
        return_parts: Also return the log-sum-exp and the number of kept keys, as `Parts`.

    Returns:
        [B, H, Tq, D], or `Parts`.

    Two runs of one back end give the same bits for the same input, backward pass included; those of
    two back ends agree up to rounding. Gradients come by `backward` and `torch.autograd.grad`, once
    (no second derivatives), also of what `torch.func.vmap` computed; `torch.func.grad`, `vjp`,
    `jvp` and forward mode are an error here, but go through `kernels.tra.reference.attend`. Scores
    must be finite: where q k^T overflows, so does the result.

    Keys and values that a query may not see do not reach it, even if they are NaN or infinite; nor
    do queries reach the gradients of keys that they do not see. The fused kernel multiplies whole
    tiles: there a *value* that is not finite reaches all queries of its tile, and in the backward
    pass so does a key. Fill a padded cache with zeros, not with `torch.empty`, on a GPU.
    """
    if backend is not None:
        check_word("backend", backend, BACKENDS)
    how = check(q, k, v, gate, threshold, scale, offset, normalised, tolerance)
    check_flag("sparse", sparse)
    check_flag("return_parts", return_parts)
    backward_only("threshold_relative_attention has", MORE, (q, k, v, gate))
    start, stop = real_keys(lengths, padding, k)
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v, gate))
    split = not learns and q.shape[-2] == 1
    how = how._replace(sparse=sparse, split=split)
    run = tra_op if learns or watched(q, k, v, gate) else _tra
    out, lse, kept, _ = run(q, k, v, gate, start, stop, *how, backend or "")
    return Parts(out, lse, kept) if return_parts else out


def watched(*tensors: Tensor) -> bool:
    """Whether torch has to see the op, gradients aside; else the back end is called directly.

    It traces or compiles, maps or differentiates by functions, casts, or has tensors of other
    kinds. To go through torch takes Python as long as some kernels take the GPU.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or any(type(t) not in _KINDS or t.is_meta for t in tensors)
        or torch.is_autocast_enabled(tensors[0].device.type)
    )


def one_query(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    raw: Tensor,
    start: Tensor | None,
    how: Setting,
) -> Tensor | None:
    """One query at the last key, without gradients, by the fused kernel; None where it does not go.

    For a model that generates: its tensors fit together as they were made, and are not checked.
    The gate is log σ of `raw` (b, 1, h), which the kernel takes. `start` (b,) is int32, the first
    real key of a row. The offset of `how` is not read.
    """
    tensors = (q, k, v, raw)
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    if learns or watched(*tensors) or not q.dtype == k.dtype == v.dtype:
        return None
    kernel = back_end(q)
    if kernel is cpu or k.shape[2] < kernel.FEWEST_TO_SPLIT:
        return None
    out: Tensor = kernel.one_query(q, k, v, raw, start, None, how, k.shape[2] - 1, raw=True)
    return out


def _tra(*args: Any) -> tuple[Tensor, ...]:
    """Output, log-sum-exp, kept keys, and how far left each row was read."""
    how = Setting(*args[_NUMBERS])
    out, *rest = back_end(args[0], args[-1]).forward(*args[:_TENSORS], how)
    # whichever it was, the heads of a token lie side by side, where the next matmul wants them
    return out.transpose(1, 2).contiguous().transpose(1, 2), *rest


def _tra_backward(*args: Any) -> tuple[Tensor, ...]:
    (d_out, d_lse, out, lse, reach), inputs = args[:_FIRST], args[_FIRST:]
    gradients: tuple[Tensor, ...] = back_end(inputs[0], inputs[-1]).backward(
        d_out, d_lse, *inputs[:_TENSORS], out, lse, reach, Setting(*inputs[_NUMBERS])
    )
    return gradients


def _empty_results(q: Tensor, *_: Any) -> tuple[Tensor, ...]:
    wide = torch.promote_types(q.dtype, torch.float32)
    kept = q.new_empty(q.shape[:-1], dtype=torch.int32)
    return (
        q.new_empty(q.transpose(1, 2).shape).transpose(1, 2),
        q.new_empty(q.shape[:-1], dtype=wide),
        kept,
        kept.new_empty(kept.shape),
    )


def _empty_gradients(*args: Any) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape) for t in args[_FIRST : _FIRST + 4])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    out, lse, kept, reach = output
    ctx.save_for_backward(out, lse, reach, *inputs[:_TENSORS])
    ctx.numbers = inputs[_TENSORS:]
    ctx.mark_non_differentiable(kept, reach)
    ctx.set_materialize_grads(False)  # zeros nobody asked for would be written and read again


def _differentiate(
    ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, *_: Any
) -> tuple[Tensor | None, ...]:
    if d_out is None:
        d_out = torch.zeros_like(ctx.saved_tensors[0])
    gradients = tra_backward_op(d_out, d_lse, *ctx.saved_tensors, *ctx.numbers)
    return (*gradients, *(None for _ in range(2 + len(ctx.numbers))))


def _autocast(device: str) -> Any:
    """Lower q, k and v to autocast's dtype; the gate keeps its own."""
    key = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device.upper()}"))

    def rule(*args: Any) -> tuple[Tensor, ...]:
        lower = torch.get_autocast_dtype(device)
        qkv = (t if t.dtype == torch.float64 else t.to(lower) for t in args[:3])
        with torch._C._ExcludeDispatchKeyGuard(key):
            return tra_op(*qkv, *args[3:])

    return rule


tra_op = register_op(
    "tra",
    _tra,
    fake=_empty_results,
    backward=_differentiate,
    save=_save,
    schema=f"({_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
for _device in ("cpu", "cuda"):
    library.impl("tra", _autocast(_device), f"Autocast{_device.upper()}")
tra_backward_op = register_op(
    "tra_backward",
    _tra_backward,
    fake=_empty_gradients,
    backward=first_only("threshold_relative_attention has", MORE),
    schema="(Tensor d_out, Tensor? d_lse, Tensor out, Tensor lse, Tensor reach, "
    f"{_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
