"""`nope`: no position at all; the causal mask alone tells order (Kazemnejad et al., 2305.19466).

Path: torch's fused attention.
"""

from __future__ import annotations

from outlast.mixers.attention.schemes.base import Scheme
from outlast.registry import schemes


@schemes.register("nope")
class Nope(Scheme):
    """No positional encoding."""

    uses_positions = False
