"""What happens to each number by itself after a matmul: its bias and its non-linearity."""

from outlast.kernels.pointwise.op import bias_gelu, bias_glu, fused

__all__ = ["bias_gelu", "bias_glu", "fused"]
