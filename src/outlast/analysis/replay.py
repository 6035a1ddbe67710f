"""Passes of an altered model over the same sequences: what lies before the change is not computed.

::

    replay = Replay(model, tokens)
    with replay.until([sublayer]), closed([sublayer]):
        model(tokens)     # begins at this sublayer; those before it put out what they did
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from outlast.models.model import Model, Sublayer


class Replay:
    """One pass of a model, whose `logits` and whose sublayers' outputs are kept."""

    def __init__(self, model: Model, tokens: Tensor) -> None:
        self.model, self.outputs = model, dict[Sublayer, Tensor | None]()

        def keep(sublayer: Sublayer, _: Any, output: tuple[Tensor | None, Any]) -> None:
            self.outputs[sublayer] = output[0]

        with ExitStack() as stack:
            for sublayer in model.sublayers():
                stack.callback(sublayer.register_forward_hook(keep).remove)
            self.logits: Tensor = model(tokens)[0]

    @contextmanager
    def until(self, changed: Iterable[Sublayer]) -> Iterator[None]:
        """Sublayers before the first of these in the line put out what they did."""
        sublayers, stop = self.model.sublayers(), set(changed)
        first = next((n for n, sublayer in enumerate(sublayers) if sublayer in stop), 0)
        same = sublayers[:first]
        try:
            for sublayer in same:
                sublayer.forward = _put_out(self.outputs[sublayer])  # type: ignore[method-assign]
            yield
        finally:
            for sublayer in same:
                sublayer.__dict__.pop("forward", None)


def _put_out(output: Tensor | None) -> Callable[..., tuple[Tensor | None, Any]]:
    return lambda stream, state=None: (output, state)
