"""A linear map with weights for each seed."""

from outlast.kernels.linear.op import linear

__all__ = ["linear"]
