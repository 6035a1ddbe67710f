"""Layer and RMS norm with weights for each seed, one pass forward and one back."""

from outlast.kernels.norm.op import add_norm, norm, rms

__all__ = ["add_norm", "norm", "rms"]
