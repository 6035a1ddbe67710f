"""Queries, keys and values of all heads out of one projection, the first two changed on the way."""

from outlast.kernels.heads.op import normed_heads, turned_heads
from outlast.kernels.heads.reference import rms, turn

__all__ = ["normed_heads", "rms", "turn", "turned_heads"]
