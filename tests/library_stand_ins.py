"""Stand-ins for kernels of other libraries, written after their documented layout."""

from __future__ import annotations

import sys
from types import ModuleType

import torch

from outlast.kernels.entmax import entmax15


def fox(q, k, v, g, scale=None, window_size=None, cu_seqlens=None):
    """As `parallel_forgetting_attn` is documented: (batch, tokens, heads, width), log gates g."""
    assert g.dtype == torch.float32
    kept = g.cumsum(1).to(q.dtype).permute(0, 2, 1)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    scores = scores + kept[..., :, None] - kept[..., None, :]
    later = torch.ones(scores.shape[-2:]).triu(1).bool()
    return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(later, -torch.inf).softmax(-1), v)


class Sparse(torch.autograd.Function):
    """1.5-entmax as libraries write such things: it knows of no vmap."""

    @staticmethod
    def forward(ctx, scores):
        with torch.enable_grad():
            ctx.scores = scores.detach().requires_grad_()
            ctx.weights = entmax15(ctx.scores)
        return ctx.weights.detach()

    @staticmethod
    def backward(ctx, grad):
        return torch.autograd.grad(ctx.weights, ctx.scores, grad)


def splash(q, k, v, alpha=1.5, is_causal=True, varlen=None, niter=None):
    """As `adasplash` is documented: (batch, heads, tokens, width)."""
    assert alpha == 1.5
    assert is_causal
    assert all(t.is_contiguous() for t in (q, k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:]).triu(1).bool()
    return Sparse.apply(scores.masked_fill(later, -torch.inf)) @ v


def install(monkeypatch) -> list[str]:
    """Put them where the libraries would be; the list says which were called."""
    calls: list[str] = []

    def put(module: str, name: str, function) -> None:
        def noted(*args, **kwargs):
            calls.append(name)
            return function(*args, **kwargs)

        stand_in = ModuleType(module)
        setattr(stand_in, name, noted)
        monkeypatch.setitem(sys.modules, module, stand_in)

    for parent in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    put("fla.ops.forgetting_attn", "parallel_forgetting_attn", fox)
    put("adasplash", "adasplash", splash)
    return calls
