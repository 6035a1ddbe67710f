"""α-entmax over the last axis: exact by sorting for α = 1.5, by bisection for any α > 1."""

from outlast.kernels.entmax.op import entmax, entmax15

__all__ = ["entmax", "entmax15"]
