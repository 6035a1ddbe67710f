"""Threshold Relative Attention (arXiv 2503.23174): distance counted over the kept keys alone."""

from outlast.kernels.tra.op import has_kernel, threshold_relative_attention
from outlast.kernels.tra.parts import Parts, merge

__all__ = ["Parts", "has_kernel", "merge", "threshold_relative_attention"]
