"""Tasks: one file each, found by name through `outlast.registry.tasks`."""

from outlast.tasks.base import IGNORE, Batch, Task
from outlast.tasks.drawing import draw

__all__ = ["IGNORE", "Batch", "Task", "draw"]
