"""Methods: what changes while training. Found by name through `outlast.registry.methods`."""

from outlast.methods.base import Control, Event, Method, Setup
from outlast.methods.delay import delay

__all__ = ["Control", "Event", "Method", "Setup", "delay"]
