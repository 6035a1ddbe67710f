"""Mixers: what stands between `>` and `|` in a layout line. Found through `registry.mixers`."""

from outlast.mixers.base import Mixer, Pathway

__all__ = ["Mixer", "Pathway"]
