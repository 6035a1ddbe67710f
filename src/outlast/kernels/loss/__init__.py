"""Cross-entropy and accuracy by part of a task, for each seed."""

from outlast.kernels.loss.op import part_losses

__all__ = ["part_losses"]
