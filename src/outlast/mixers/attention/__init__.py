"""Attention and its schemes."""

from outlast.mixers.attention.attention import Attention, Cache

__all__ = ["Attention", "Cache"]
