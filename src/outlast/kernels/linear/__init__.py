"""A linear map with weights for each seed."""

from outlast.kernels.linear.op import linear, over_last

__all__ = ["linear", "over_last"]
