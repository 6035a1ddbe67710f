"""Layer norm with a scale and shift for each seed, one pass forward and one back."""

from outlast.kernels.norm.op import add_norm, norm

__all__ = ["add_norm", "norm"]
