"""`dape(scheme)`: scores and bias go through a small convolution together (DAPE V2, 2410.04798).

With A the products q·k / √d and B the bias of another scheme (`alibi`, `kerple`, `fire`, `t5`),

    scores = A + B + Conv(LeakyReLU(Conv([A; B]))),

convolutions of width 3 along the keys with heads as channels, 2H -> 32 -> H. Checked against
public code that seems to be the authors', where later keys are set to 0 before the first
convolution; here also before the second, so that a row does not depend on how many later keys
there are (ours).

Path: a block of queries at a time, of small blocks: 3 x 32 numbers are held for each score.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.errors import bad_value
from outlast.mixers.attention.schemes.base import Scheme, distances, scaled_products
from outlast.mixers.base import Linear
from outlast.registry import schemes
from outlast.specs import Spec

_HIDDEN = 32
#: what a scheme may override
_OVERRIDES = ("embed", "rotate", "unpacked", "values", "token_features", "bias", "scores", "weigh")


@schemes.register("dape")
class Dape(Scheme):
    """Data-adaptive positions, version 2: attention scores as a feature map.

    Args:
        scheme: The bias that is adapted: a scheme that is a bias and nothing else.
    """

    scores_memory: ClassVar[int] = _HIDDEN

    def __init__(self, width: int, heads: int, scheme: Spec = Spec("kerple")) -> None:
        super().__init__(width, heads)
        self.inner: Scheme = schemes.build(scheme, width=width, heads=heads)
        if not _is_bias(type(self.inner)):
            biased = [n for n in schemes.names() if _is_bias(schemes.entry(n).factory)]
            raise bad_value(
                "scheme", scheme, f"a scheme that is a bias and nothing else: {' | '.join(biased)}"
            )
        self.first = Linear(3 * 2 * heads, _HIDDEN)
        self.second = Linear(3 * _HIDDEN, heads)

    def scores(
        self, q: Tensor, k: Tensor, token_features: Tensor | None, positions: Tensor, keys: Tensor
    ) -> Tensor:
        later = distances(positions, keys) < 0
        a = scaled_products(q, k).masked_fill(later, 0)
        bias = self.inner.bias(positions, keys)
        assert bias is not None  # for the type checker: the constructor has checked it
        b = bias.to(a.dtype).masked_fill(later, 0).expand_as(a)
        hidden = F.leaky_relu(_convolve(torch.cat([a, b], 1), self.first)).masked_fill(later, 0)
        return a + b + _convolve(hidden, self.second)


def _convolve(x: Tensor, linear: Linear) -> Tensor:
    """A convolution of width 3 along the last axis of x (batch, channels, queries, keys).

    It is one product over the channels of the key before, the key itself and the key after. Unlike
    `conv2d` it sums in a fixed order, and it stays one product for each seed under vmap.
    """
    wider = F.pad(x, (1, 1))
    taps = torch.cat([wider[..., :-2], x, wider[..., 2:]], 1).flatten(2)
    weight, bias = linear.weight.to(x.dtype), linear.bias.to(x.dtype)
    return (weight @ taps + bias[:, None]).unflatten(-1, x.shape[-2:])


def _is_bias(kind: object) -> bool:
    """Whether a scheme is a finite bias and nothing else. Any other override would be lost."""
    if not (isinstance(kind, type) and issubclass(kind, Scheme)) or kind.masks:
        return False
    changed = {name for name in _OVERRIDES if getattr(kind, name) is not getattr(Scheme, name)}
    return changed == {"bias"}
