"""Queries, keys and values of all heads out of one projection, the first two normalised."""

from outlast.kernels.heads.op import normed_heads
from outlast.kernels.heads.reference import rms

__all__ = ["normed_heads", "rms"]
