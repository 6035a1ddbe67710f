"""Presets: names for layout lines that come up often. `outlast list` shows them.

A preset stands wherever a mixer may: ``--model serial``, ``--model "serial @ 64"``.
"""

from __future__ import annotations

from outlast.registry import presets
from outlast.specs import Layout, parse_layout


@presets.register("transformer")
def transformer() -> Layout:
    """A plain Transformer without positions: attention and MLP."""
    return parse_layout("4 x (attention > mlp)")


@presets.register("recurrent")
def recurrent() -> Layout:
    """A plain recurrent stack: LSTM and MLP."""
    return parse_layout("4 x (lstm > mlp)")


@presets.register("serial")
def serial() -> Layout:
    """The serial hybrid: LSTM, then attention, then MLP, in each block."""
    return parse_layout("4 x (lstm > attention > mlp)")


@presets.register("parallel")
def parallel() -> Layout:
    """The parallel hybrid: LSTM and attention side by side, then MLP."""
    return parse_layout("4 x (lstm | attention > mlp)")


@presets.register("interleaved")
def interleaved() -> Layout:
    """The interleaved hybrid: two recurrent blocks to one of attention."""
    return parse_layout("2 x (lstm > mlp > lstm > mlp > attention > mlp)")
