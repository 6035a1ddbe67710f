"""AdamW over a table of seeds: each seed and pathway has its own rate, count, clipping, decay."""

from outlast.kernels.adamw.op import update
from outlast.kernels.adamw.reference import Columns

__all__ = ["Columns", "update"]
