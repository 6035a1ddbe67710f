"""A section of `outlast bench tra`: attention of other libraries beside TRA.

The libraries are called in the layout they want, on inputs that lie so already: FoX of
flash-linear-attention (tokens before heads) and 1.5-entmax of AdaSplash. Neither computes what TRA
computes; each is compared with its own definition in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from torch import Tensor

from outlast.bench.timing import Bench
from outlast.bench.tra.inputs import (
    BATCH,
    ENTMAX,
    FLASH,
    FORGETTING,
    HEADS,
    PASSES,
    TRA_FUSED,
    Attend,
    Contender,
    Inputs,
)
from outlast.kernels.libraries import PACKAGES, installed


def libraries(bench: Bench, length: int = 8192, width: int = 64) -> None:
    """FoX of flash-linear-attention and AdaSplash, at n 8192."""
    data = Inputs.draw(bench, (BATCH, HEADS, length, width))
    tokens_first = _tokens_first(data)
    others = {
        "fox, fla": Contender(_fox_of_heads_first, FORGETTING),
        "adasplash": Contender(splash, ENTMAX),
    }
    for name, backward in PASSES:
        sides, errors = data.measured(FLASH | TRA_FUSED | others, backward)
        sides["fox, fla"] = tokens_first.side(Contender(fox, FORGETTING), backward)
        what = f"n {length}, width {width}, {name}"
        bench.compare("peers", what, sides, errors, f"for tra: {data.description()}")


def _of_library(package: str) -> Callable[[Attend], Attend]:
    """For attention of a package: whatever goes wrong in it is one kind of error."""

    def wrap(attend: Attend) -> Attend:
        @wraps(attend)
        def run(*inputs: Tensor) -> Tensor:
            if not installed(package):
                raise ImportError(f"{PACKAGES[package]} is not installed (outlast[fast])")
            try:
                return attend(*inputs)
            except Exception as error:
                raise RuntimeError(f"{type(error).__name__}: {error}") from error

        return run

    return wrap


@_of_library("fla")
def fox(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
    """Forgetting attention of flash-linear-attention, all (batch, tokens, heads, ...)."""
    from fla.ops.forgetting_attn import parallel_forgetting_attn

    out: Tensor = parallel_forgetting_attn(q, k, v, gate)
    return out


@_of_library("adasplash")
def splash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """1.5-entmax attention of AdaSplash, all (batch, heads, tokens, width)."""
    from adasplash import adasplash

    out: Tensor = adasplash(q, k, v, alpha=1.5)
    return out


def _tokens_first(data: Inputs) -> Inputs:
    """The same with tokens before heads."""
    q, k, v, gate = (t.detach().transpose(1, 2).contiguous().requires_grad_() for t in data.leaves)
    return Inputs(q, k, v, gate, data.above.transpose(1, 2).contiguous())


def _fox_of_heads_first(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
    """`fox` of inputs with heads before tokens."""
    return fox(*(t.transpose(1, 2) for t in (q, k, v, gate))).transpose(1, 2)
