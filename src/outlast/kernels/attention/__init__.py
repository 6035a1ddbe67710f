"""Causal softmax attention over a whole sequence or a cache, with seeds folded into the batch."""

from outlast.kernels.attention.op import attend, attend_packed

__all__ = ["attend", "attend_packed"]
