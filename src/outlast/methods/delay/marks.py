"""A model saved while attention is held back says so.

A model of `transformers` is saved with its config. Until attention is fully on, the config has a
field `delayed_attention`: what is held back, and the state of the delay. `save_pretrained` writes
it into ``config.json``. To continue there::

    saved = model.config.delayed_attention
    delayed = outlast.delay(model)
    delayed.load_state_dict(saved)

Other code ignores the field and would run the model with attention that never learned; `held_back`
tells.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from outlast.methods.delay.discovery import models_with_config

FIELD = "delayed_attention"
NOTE = "attention was not fully on when this was saved; outlast.delay holds it back again"


def held_back(model: nn.Module) -> str | None:
    """What to tell the user of a loaded model whose attention is not on; None if all is well."""
    marks = [getattr(one.config, FIELD, None) for one in models_with_config(model)]
    mark = next((mark for mark in marks if isinstance(mark, dict)), None)
    if mark is None:
        return None
    switched = (mark.get("state") or {}).get("switched")
    phase = "in phase 1" if switched is None else "while attention was opening"
    return (
        f"{type(model).__name__}: delayed attention: this model was saved {phase}, after "
        f"{mark.get('steps')} steps; load_state_dict(model.config.{FIELD}) of a new delay "
        "continues there"
    )


def _own_configs(model: nn.Module) -> list[Any]:
    """Give a model of `transformers` copies of its configs: others may share the objects."""
    copies: dict[int, Any] = {}
    found = [one.config for one in models_with_config(model) if hasattr(one.config, "to_dict")]
    own = copy.deepcopy(found, copies)
    for module in model.modules():
        if id(config := vars(module).get("config")) in copies:
            module.config = copies[id(config)]
    return own


class Mark:
    """The mark of one delay in the configs of its model, which become the model's own."""

    def __init__(self, model: nn.Module, **delay: Any) -> None:
        self._configs = _own_configs(model)
        self._content: dict[str, Any] = {"note": NOTE, **delay}

    def write(self, state: dict[str, Any]) -> None:
        """Note the state. The dict in the config stays the same object."""
        self._content.update(state)
        for config in self._configs:
            if getattr(config, FIELD, None) is not self._content:
                setattr(config, FIELD, self._content)

    def erase(self) -> None:
        for config in self._configs:
            if getattr(config, FIELD, None) is self._content:
                delattr(config, FIELD)
