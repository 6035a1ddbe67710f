"""Recurrences that are linear in their state, in parallel over time: plain torch, any device."""

from outlast.kernels.linear_recurrence.decayed import decayed_sum
from outlast.kernels.linear_recurrence.delta import delta_rule
from outlast.kernels.linear_recurrence.scan import linear_scan, running_maximum

__all__ = ["decayed_sum", "delta_rule", "linear_scan", "running_maximum"]
