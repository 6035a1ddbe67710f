"""Configs of the TRA model types: those of the stock types, and TRA's own options.

    tra_threshold    a key with a score above it is kept; 0 in the paper; None keeps every key
    tra_norm         whether q and k are RMS-normalised without a scale, as in the paper
    tra_gate_bias    the gates' bias at the start: 0 in the paper's spirit, larger is ours

They mean what `attention(tra)` means by them (`mixers/attention/schemes/tra.py`). Qwen3 has norms
of q and k with a learned scale. They stay, and TRA's norm comes after them: that order is ours.

What the stock config says of rotary embeddings is kept, as its class asks for it, and not used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from transformers import LlamaConfig, MistralConfig, Qwen3Config

from outlast.arguments import shown
from outlast.errors import require


@dataclass(kw_only=True, repr=False)
class TraOptions:
    """TRA's own fields of a config.

    Args:
        tra_threshold: A key is kept if its scaled score is above this; None keeps every key.
        tra_norm: Whether q and k are RMS-normalised.
        tra_gate_bias: The bias of the gates before training. A gate is log σ(w·x + b), so 0 halves
            the weight with each kept key of distance, and 4 takes 2 % off.
    """

    tra_threshold: float | None = 0.0
    tra_norm: bool = True
    tra_gate_bias: float = 0.0

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)  # type: ignore[misc]
        check_config(self)


class TraLlamaConfig(TraOptions, LlamaConfig):
    """Of `tra_llama`."""

    model_type = "tra_llama"


class TraQwen3Config(TraOptions, Qwen3Config):
    """Of `tra_qwen3`; all its layers see the whole past."""

    model_type = "tra_qwen3"


class TraMistralConfig(TraOptions, MistralConfig):
    """Of `tra_mistral`; without a sliding window, which is also the default here."""

    model_type = "tra_mistral"
    sliding_window: int | None = None


def check_config(config: Any) -> None:
    """Refuse what TRA does not have, and options that are no numbers."""
    threshold, norm, bias = config.tra_threshold, config.tra_norm, config.tra_gate_bias
    require(
        threshold is None or _is_number(threshold),
        "tra_threshold",
        shown(threshold),
        "a finite number, or None to keep every key",
    )
    require(isinstance(norm, bool), "tra_norm", shown(norm), "True | False")
    require(_is_number(bias), "tra_gate_bias", shown(bias), "a finite number")
    window = getattr(config, "sliding_window", None)
    require(window is None, "sliding_window", shown(window), "None: TRA has no sliding window")
    for layer_type in getattr(config, "layer_types", None) or ():
        require(
            layer_type == "full_attention",
            "layer_types",
            layer_type,
            "full_attention in each layer",
        )
    dropout = config.attention_dropout
    require(not dropout, "attention_dropout", shown(dropout), "0: the fused kernel has no dropout")
    require(getattr(config, "is_causal", True), "is_causal", False, "True: distance looks back")


def _is_number(value: object) -> bool:
    kind = isinstance(value, int | float) and not isinstance(value, bool)
    return kind and math.isfinite(value)  # type: ignore[arg-type]
