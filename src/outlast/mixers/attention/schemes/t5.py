"""`t5`: a learned bias for each of a few ranges of distance (Raffel et al., 1910.10683).

    scores = q_i·k_j / √d + b_h[bucket(i - j)],

one b for each head. With B buckets, distances below E = B/2 have a bucket each, and farther ones

    bucket(n) = min(B - 1, E + floor((B - E) log(n / E) / log(distance / E))).

T5 leaves out the 1/√d on the scores; here it stays, as in all schemes. The biases start as
N(0, 0.02) (ours).

Path: a bias of positions alone, so torch's fused attention while its table fits (`attention`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from outlast.errors import bad_value, require
from outlast.mixers.attention.schemes.base import Scheme, distances
from outlast.registry import schemes


def bucket(distance: Tensor, buckets: int, farthest: int) -> Tensor:
    """The bucket of each distance, whole numbers below `buckets`, shaped like `distance`."""
    exact = buckets // 2
    near = distance.clamp(0, exact - 1)
    logs = (distance.clamp_min(exact).float() / exact).log() / math.log(farthest / exact)
    far = exact + (logs * (buckets - exact)).long()
    return torch.where(distance < exact, near, far.clamp_max(buckets - 1))


@schemes.register("t5")
class T5(Scheme):
    """A learned bias for each range of distance.

    Args:
        buckets: How many ranges of distance have a bias of their own.
        distance: From this distance on, all share the last bias.
    """

    def __init__(self, width: int, heads: int, buckets: int = 32, distance: int = 128) -> None:
        super().__init__(width, heads)
        require(buckets >= 2, "buckets", buckets, "a whole number >= 2")
        if distance <= buckets // 2:
            raise bad_value("distance", distance, f"a whole number > buckets/2, {buckets // 2}")
        self.buckets, self.distance = buckets, distance
        self.table = nn.Parameter(torch.randn(heads, buckets) * 0.02)

    def bias(self, positions: Tensor, keys: Tensor) -> Tensor:
        which = bucket(distances(positions, keys), self.buckets, self.distance)
        return self.table[:, which].unsqueeze(0)
