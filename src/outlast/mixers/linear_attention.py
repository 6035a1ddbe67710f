"""`linear_attention`: attention whose weights are products of features, so that sums suffice.

::

    S_t = S_{t-1} + f(k_t) v_t^T
    z_t = z_{t-1} + f(k_t)
    y_t = W S_t^T f(q_t) / (z_t . f(q_t))

Katharopoulos et al., arXiv 2006.16236. There are no positions in it and nothing is forgotten.

``normaliser=inline`` is injective linear attention (2412.06590). Instead of the division it
subtracts the mean weight and adds 1/n. Weights may be negative, and different queries have
different weights. The paper is about images; sums up to the token are ours. Its factor 1 / (n √d)
is that of the authors' code. Its local convolution is left out: see `conv`.

``fixation=true`` scales the features of queries and keys by ratios between 0 and 1 before
(2210.08164). The ratios are sigmoids of a linear map of [q, k, v]: our reading of its abstract. The
paper is about video; its neighbours in space and time are left out.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.arguments import check_choice
from outlast.kernels.linear_recurrence import decayed_sum
from outlast.mixers.base import Linear, Mixer
from outlast.mixers.heads import from_heads, head_width, to_heads
from outlast.registry import mixers

Feature = Literal["elu", "relu"]
Normaliser = Literal["sum", "inline"]
#: S beside z, (batch, heads, keys, values + 1), and the sums of values and of ones, (batch, heads,
#: 1, values + 1), in float32
LinearState = tuple[Tensor, Tensor]


@mixers.register("linear_attention")
class LinearAttention(Mixer):
    """Attention without softmax, as a recurrence whose state has a fixed size.

    Args:
        heads: How many heads share the width.
        feature: What makes queries and keys positive: elu + 1, or relu.
        normaliser: Weights over their sum, or less their mean (`inline`).
        fixation: Whether learned ratios scale queries and keys before.
    """

    pathway = "recurrent"

    def __init__(
        self,
        width: int,
        heads: int = 4,
        feature: Feature = "elu",
        normaliser: Normaliser = "sum",
        fixation: bool = False,
    ) -> None:
        super().__init__()
        check_choice("feature", feature, Feature)
        check_choice("normaliser", normaliser, Normaliser)
        self.heads, self.head_width = heads, head_width(width, heads)
        inner = heads * self.head_width
        self.feature, self.normaliser = feature, normaliser
        self.qkv = Linear(width, 3 * inner)
        self.ratios = Linear(3 * inner, 2 * inner) if fixation else None
        self.out = Linear(inner, width)

    def forward(self, x: Tensor, state: LinearState | None = None) -> tuple[Tensor, LinearState]:
        projected = self.qkv(x)
        q, k, v = (to_heads(part, self.heads) for part in projected.chunk(3, -1))
        if self.ratios is not None:
            ratios = self.ratios(projected).sigmoid().chunk(2, -1)
            q, k = (part * to_heads(r, self.heads) for part, r in zip((q, k), ratios, strict=True))
        q, k, v = self._features(q), self._features(k), F.pad(v, (0, 1), value=1.0)
        if state is None:
            rows = v[..., :1, :]
            state = (torch.zeros_like(rows).repeat(1, 1, q.shape[-1], 1), torch.zeros_like(rows))
        memory, sums = state
        inline = self.normaliser == "inline"  # it wants the sums up to each token
        sums = sums + (v.cumsum(-2) if inline else v.sum(-2, keepdim=True))
        y, memory = decayed_sum(q, k, v, q.new_zeros(q.shape[-2], 1), memory)
        y = from_heads(self._normalised(y, sums)).to(x.dtype)
        return self.out(y), (memory, sums[..., -1:, :])

    def _features(self, x: Tensor) -> Tensor:
        return F.relu(x) if self.feature == "relu" else F.elu(x) + 1

    def _normalised(self, y: Tensor, sums: Tensor) -> Tensor:
        """Outputs from weighted sums y, whose last entry is the sum of the weights."""
        if self.normaliser == "sum":
            return y[..., :-1] / (y[..., -1:] + 1e-6)
        mean, count = sums[..., :-1] / sums[..., -1:], sums[..., -1:]
        y = y / count * self.head_width**-0.5
        return y[..., :-1] + (1 - y[..., -1:]) * mean
