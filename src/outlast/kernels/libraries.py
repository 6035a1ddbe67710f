"""Kernels of other libraries, where they are installed (the extra `fast`).

=============  ==========================================  ====================================
forgetting     FoX of flash-linear-attention (`fla-core`)  softmax(q k^T / √d + sums of log f)
entmax         AdaSplash (`adasplash`)                     1.5-entmax(q k^T / √d)
=============  ==========================================  ====================================

Each function here gives what computes that, or None. They are taken on a GPU, for whole causal
sequences in 16 bit (in float32 their matmuls are not exact to float32). Both libraries choose
their block sizes by timing them, so that two runs may differ in their last bits; since a run that
is resumed must not, they are taken under `torch.no_grad` alone, unless the environment variable
``OUTLAST_LIBRARIES`` is ``on``; ``off`` is never. Under ``on`` the log says, once, why one is not
taken where it might have been. Under vmap seeds are more batch.

Linear recurrences take nothing from fla: `outlast.kernels.linear_recurrence` is plain torch.

Written against fla-core 0.6.0 and adasplash 0.2.2.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from outlast.errors import bad_value, how_to_install
from outlast.kernels.register import register_op, save_inputs

log = logging.getLogger(__name__)

SWITCH = "OUTLAST_LIBRARIES"
#: the module of each, and what is installed to have it
PACKAGES = {"fla": "fla-core", "adasplash": "adasplash"}
#: the widest head FoX takes
WIDEST = 256
#: head widths AdaSplash takes, and the fewest tokens; more must be a power of 2. It takes 64 too,
#: but there one run of two had gradients 24 % off (on an H200)
WIDTHS, FEWEST = (16, 32, 64, 128, 256), 256


def forgetting(q: Tensor, k: Tensor, v: Tensor) -> Callable[..., Tensor] | None:
    """FoX's attention of q, k, v [B, H, T, D] and log gates [B, H, T], if it can be taken."""
    why = obstacle("fla", q, k, v)
    if why is None and q.shape[-1] > WIDEST:
        why = f"a head is wider than {WIDEST}"
    return forgetting_attend if _taken("fla", why) else None


def entmax15(q: Tensor, k: Tensor, v: Tensor) -> Callable[..., Tensor] | None:
    """AdaSplash's attention of q, k, v [B, H, T, D], if it can be taken."""
    tokens, width = q.shape[-2:]
    why = obstacle("adasplash", q, k, v)
    if why is None and width not in WIDTHS:
        why = f"the width of a head is none of {', '.join(map(str, WIDTHS))}"
    if why is None and (tokens < FEWEST or tokens.bit_count() > 1):
        why = f"the number of tokens is no power of 2 from {FEWEST} on"
    return entmax_attend if _taken("adasplash", why) else None


def _taken(package: str, why: str | None) -> bool:
    """Whether nothing speaks against a library; who asked for it is told what does."""
    if why is not None and os.environ.get(SWITCH) == "on":
        _say(package, why)
    return why is None


@cache
def _say(package: str, why: str) -> None:
    """Once for each reason."""
    log.warning("%s=on, but %s is not taken: %s", SWITCH, PACKAGES[package], why)


def obstacle(package: str, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why a library is not taken for these, in words; None if it is."""
    switch = os.environ.get(SWITCH, "auto")
    if switch not in ("auto", "on", "off"):
        raise bad_value(SWITCH, switch, "auto | on | off")
    if not installed(package):
        return f"{PACKAGES[package]} is not installed ({how_to_install('fast')})"
    if switch == "off":
        return f"{SWITCH}=off"
    if switch == "auto" and torch.is_grad_enabled():
        return f"there may be a gradient and not {SWITCH}=on"
    if not q.is_cuda or q.dtype.itemsize != 2:
        return "it is for 16 bit on a GPU"
    if not q.shape == k.shape == v.shape or len({q.dtype, k.dtype, v.dtype}) > 1:
        return "it is for whole sequences, of one type"
    return None


@cache
def installed(package: str) -> bool:
    """Whether a library is there."""
    return find_spec(package) is not None


def _forgetting(q: Tensor, k: Tensor, v: Tensor, log_gates: Tensor) -> Tensor:
    from fla.ops.forgetting_attn import parallel_forgetting_attn

    tokens_first = [t.transpose(1, 2) for t in (q, k, v, log_gates.float())]
    out: Tensor = parallel_forgetting_attn(*tokens_first)
    return out.transpose(1, 2).contiguous()


def _entmax_attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from adasplash import adasplash

    out: Tensor = adasplash(q.contiguous(), k.contiguous(), v.contiguous(), alpha=1.5)
    return out.contiguous()


def _run_again(name: str, run: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """The backward pass of a library's function: it runs the function once more.

    A foreign `autograd.Function` cannot be differentiated below vmap; the op's own backward pass
    is above it.
    """

    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, ...]:
        if torch.is_grad_enabled():
            raise NotImplementedError(f"{name} has first derivatives only; {SWITCH}=off has more")
        leaves = [t.detach().requires_grad_() for t in ctx.saved_tensors]
        with torch.enable_grad():
            return torch.autograd.grad(run(*leaves), leaves, d_out)

    return backward


def _empty(q: Tensor, *_: Tensor) -> Tensor:
    return torch.empty_like(q).contiguous()


#: the two whatever speaks against them; `forgetting` and `entmax15` ask first
forgetting_attend = register_op(
    "forgetting",
    _forgetting,
    fake=_empty,
    backward=_run_again("forgetting", _forgetting),
    save=save_inputs,
)
entmax_attend = register_op(
    "entmax_attend",
    _entmax_attend,
    fake=_empty,
    backward=_run_again("entmax_attend", _entmax_attend),
    save=save_inputs,
)
