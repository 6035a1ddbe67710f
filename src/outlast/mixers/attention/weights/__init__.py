"""Weights: how scores become weights. One file each, found through `registry.weightings`."""

from outlast.mixers.attention.weights.base import Weights

__all__ = ["Weights"]
