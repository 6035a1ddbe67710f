"""A model saved while attention is held back says so.

A model of `transformers` is saved with its config. Until attention is fully on, the config has a
field `outlast_delay` with the state of the delay. `save_pretrained` writes it into ``config.json``.
A new `delay` on the loaded model continues from there. Other code ignores the field and would run
the model with attention that never learned; `held_back` tells.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from outlast.methods.delay.discovery import models_with_config

FIELD = "outlast_delay"
NOTE = (
    "saved before attention was fully on (delayed attention training); load it with outlast.delay "
    "to continue there"
)


def held_back(model: nn.Module) -> str | None:
    """What to tell the user of a model whose attention is not fully on; None if all is well."""
    mark = read_mark(model)
    if mark is None:
        return None
    steps, switched = mark.get("steps"), mark.get("state", {}).get("switched")
    phase = "in phase 1" if switched is None else "while attention was still opening"
    return f"this model was saved {phase}, after {steps} steps: {NOTE}"


def read_mark(model: nn.Module) -> dict[str, Any] | None:
    """The mark in the config of a model, if there is one."""
    marks = [getattr(one.config, FIELD, None) for one in models_with_config(model)]
    return next((mark for mark in marks if isinstance(mark, dict)), None)


class Mark:
    """The mark of one delay in the configs of its model."""

    def __init__(self, model: nn.Module, switch: str) -> None:
        self._configs = [
            one.config for one in models_with_config(model) if hasattr(one.config, "to_dict")
        ]
        self._switch = switch
        self._content: dict[str, Any] = {}

    def write(self, state: dict[str, Any]) -> None:
        """Note the state. The dict in the config stays the same object."""
        self._content.update(note=NOTE, switch=self._switch, **state)
        for config in self._configs:
            if getattr(config, FIELD, None) is not self._content:
                setattr(config, FIELD, self._content)

    def erase(self) -> None:
        for config in self._configs:
            if getattr(config, FIELD, None) is self._content:
                delattr(config, FIELD)
