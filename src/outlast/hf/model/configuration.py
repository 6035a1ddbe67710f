"""`OutlastConfig`: a model line and its sizes, as ``config.json`` holds them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedConfig

from outlast.errors import require
from outlast.models import Model, build_model
from outlast.models.build import canonical_layout
from outlast.tasks import Task
from outlast.workflow.export import MODEL_TYPE, layer_types, model_config


class OutlastConfig(PreTrainedConfig):  # type: ignore[misc]
    """The configuration of an Outlast model.

    Args:
        line: The model line, such as "4 x (lstm > attention > mlp) @ 128".
        vocab_size: How many tokens there are.
        classes: How many of them may be answers; by default all outputs.
        task: The line of the task that the model was trained on, if it is known.
        hidden_size: The width; it must be that of the line.
        layer_types: The kind of each block: `linear_attention` (recurrence), `full_attention` or
            `hybrid` (both). It follows from the line.
        num_hidden_layers: The number of blocks.
        gates: A gate for each sublayer; None: all are open.
        span: The range from which positions were drawn in training; 0: they were counted.
        use_cache: Whether a pass returns the state.
    """

    model_type = MODEL_TYPE
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 (as transformers has it)

    line: str = "4 x (lstm > attention > mlp) @ 128"
    vocab_size: int = 256
    classes: int | None = None
    task: str | None = None
    hidden_size: int | None = None
    num_hidden_layers: int | None = None
    layer_types: list[str] | None = None
    gates: list[float] | None = None
    span: int = 0
    outlast_version: str | None = None
    use_cache: bool = True
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        layout = canonical_layout(self.line)
        fits = self.hidden_size in (None, layout.width)
        require(fits, "hidden_size", self.hidden_size, f"{layout.width}, the width of the line")
        self.hidden_size = layout.width
        if self.layer_types is None:
            with torch.device("meta"):
                self.layer_types = layer_types(build_model(layout, 1, 1))
        if self.num_hidden_layers is None:
            self.num_hidden_layers = len(self.layer_types or [self.line])
        super().__post_init__(**kwargs)

    @classmethod
    def from_model(cls, model: Model, task: Task | None = None) -> OutlastConfig:
        """The configuration of a built model, and of the task it is for."""
        values = model_config(model, task)
        del values["model_type"]
        return cls(**values)
