"""`fix(part)`: some of attention's weights stay as they were initialised.

::

    fix(qk)        queries and keys: attention looks where it happened to look at first
    fix(values)    values: attention learns where to look, and copies what it happened to copy
    fix(both)      both: only what follows attention learns to read it

Ours, to ask which part of attention carries what it adds: ``dat`` with ``fix(qk)`` has bit for bit
the first phase of ``dat``, as attention is absent there, and differs after the switch alone. The
fixed rows of the weight `qkv` get no gradient, count for no gradient's norm, and are not decayed.
Nothing else is fixed: the output map, the norm before attention and the weights of a scheme learn.
A seed that starts again from fresh weights (``otherwise=retry``) keeps the fresh ones.
"""

from __future__ import annotations

from typing import Literal

from outlast.errors import incompatible
from outlast.methods.base import FIXABLE, Control, Method, MethodState, Setup
from outlast.registry import methods


@methods.register("fix")
class Fix(Method):
    """Keeps queries and keys, or values, of attention as they were initialised.

    Args:
        part: What stays as it is: queries and keys, values, or both.
    """

    def __init__(self, part: Literal["qk", "values", "both"] = "qk") -> None:
        self.parts = FIXABLE if part == "both" else (part,)

    def check(self, setup: Setup) -> None:
        if not set(self.parts) <= set(setup.fixable):
            reason = "it has no attention whose queries, keys and values could be fixed"
            raise incompatible(str(self.spec), f"model={setup.model}", reason)

    def control(self, step: int, state: MethodState, control: Control) -> None:
        for part in self.parts:
            control.fixed[part] = 1.0
