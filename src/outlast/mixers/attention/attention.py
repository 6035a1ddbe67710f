"""`attention(scheme, heads=4)`: causal multi-head attention under a position scheme.

Linear maps for q, k, v without bias, the output map with one. Where position enters, and how
sharp the softmax is, is the scheme's business: `attention(rope)`, `attention(alibi)`, ...
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from outlast.errors import OutlastError, bad_value
from outlast.kernels.attention import attend
from outlast.mixers.base import Linear, Mixer
from outlast.registry import mixers, schemes
from outlast.specs import Spec


class Cache(NamedTuple):
    """Keys and values of the tokens so far, each (batch, heads, tokens, head width)."""

    keys: Tensor
    values: Tensor


@mixers.register("attention")
class Attention(Mixer):
    """Causal multi-head softmax attention; the scheme decides how position enters."""

    pathway = "attention"

    def __init__(self, width: int, scheme: Spec = Spec("nope"), heads: int = 4) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise bad_value("heads", heads, f"a divisor of the width, {width}")
        self.heads = heads
        self.qkv = Linear(width, 3 * width, bias=False)
        self.out = Linear(width, width)
        self.scheme = schemes.build(scheme, width=width, heads=heads)
        self.ceiling = self.scheme.ceiling

    def forward(self, x: Tensor, state: Cache | None = None) -> tuple[Tensor, Cache]:
        before = 0 if state is None else state.keys.shape[-2]
        end = before + x.shape[1]
        if self.ceiling is not None and end > self.ceiling:
            raise OutlastError(
                f"attention({self.scheme.spec}) takes at most {self.ceiling} tokens, got {end}: "
                f"raise its ceiling or use a scheme without one"
            )
        positions = torch.arange(before, end, device=x.device)
        projected = self.qkv(self.scheme.embed(x, positions))
        q, k, v = projected.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.scheme.rotate(q, k, positions)
        if state is not None:
            k, v = torch.cat([state.keys, k], -2), torch.cat([state.values, v], -2)
        y = attend(q, k, v, self.scheme.bias(positions, k.shape[-2]))
        return self.out(y.transpose(1, 2).flatten(2)), Cache(k, v)
