"""Passes of an altered model over the same sequences: what lies before the change is not computed.

::

    replay = Replay(model, tokens)
    with replay.until([sublayer]), closed([sublayer]):
        model(tokens)     # begins at this sublayer; those before it put out what they did
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from torch import Tensor

from outlast.mixers.attention.attention import Attention
from outlast.models.model import Model, Sublayer


class Replay:
    """One pass of a model, whose `logits` and whose sublayers' outputs are kept.

    `heads` has the outputs of all heads of each attention side by side, (batch, tokens, width).
    """

    def __init__(self, model: Model, tokens: Tensor) -> None:
        self.model, self.outputs = model, dict[Sublayer, Tensor | None]()
        self.heads = dict[Sublayer, Tensor]()

        def keep(sublayer: Sublayer, _: Any, output: tuple[Tensor | None, Any]) -> None:
            self.outputs[sublayer] = output[0]

        def keep_heads(sublayer: Sublayer) -> Callable[..., None]:
            return lambda _, inputs: self.heads.update({sublayer: inputs[0]})

        with ExitStack() as stack:
            for sublayer in model.sublayers():
                stack.callback(sublayer.register_forward_hook(keep).remove)
                if isinstance(sublayer.mixer, Attention):
                    handle = sublayer.mixer.out.register_forward_pre_hook(keep_heads(sublayer))
                    stack.callback(handle.remove)
            self.logits: Tensor = model(tokens)[0]

    @contextmanager
    def until(
        self, changed: Iterable[Sublayer], instead: Mapping[Sublayer, Tensor] | None = None
    ) -> Iterator[None]:
        """Sublayers before the first of these in the line put out what they did.

        `instead` says what some of the changed ones put out; they are not computed either.
        """
        sublayers, stop = self.model.sublayers(), set(changed)
        first = next((n for n, sublayer in enumerate(sublayers) if sublayer in stop), 0)
        known = {sublayer: self.outputs[sublayer] for sublayer in sublayers[:first]}
        known |= instead or {}
        try:
            for sublayer, output in known.items():
                sublayer.forward = _put_out(output)  # type: ignore[method-assign]
            yield
        finally:
            for sublayer in known:
                sublayer.__dict__.pop("forward", None)

    def without_head(self, sublayer: Sublayer, head: int) -> Tensor:
        """What an attention puts out if the weights of one head are 0: the others stay."""
        attention = cast(Attention, sublayer.mixer)
        heads = self.heads[sublayer].unflatten(-1, (attention.heads, -1)).clone()
        heads[..., head, :] = 0
        return sublayer.gate * attention.out(heads.flatten(-2))


def _put_out(output: Tensor | None) -> Callable[..., tuple[Tensor | None, Any]]:
    return lambda stream, state=None: (output, state)
