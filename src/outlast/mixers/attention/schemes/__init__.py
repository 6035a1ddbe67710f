"""Schemes: how position enters attention. One file each, found through `registry.schemes`."""

from outlast.mixers.attention.schemes.base import Scheme

__all__ = ["Scheme"]
