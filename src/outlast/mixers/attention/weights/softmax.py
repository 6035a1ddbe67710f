"""`softmax`: exp(s) over its sum. The default.

Path: torch's fused attention.
"""

from __future__ import annotations

from outlast.mixers.attention.weights.base import Weights
from outlast.registry import weightings


@weightings.register("softmax")
class Softmax(Weights):
    """Softmax over the keys so far."""
