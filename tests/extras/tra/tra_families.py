"""Tiny models of the three families, in float64 so that equal means equal to the last digits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen3Config

import outlast.hf.tra as tra

SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "head_dim": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS: dict[str, Any] = {
    "llama": tra.TraLlamaConfig,
    "qwen3": tra.TraQwen3Config,
    "mistral": tra.TraMistralConfig,
}
STOCK_CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig,
    "qwen3": Qwen3Config,
    "mistral": lambda **sizes: MistralConfig(**sizes, sliding_window=None),
}
FAMILIES = tuple(CONFIGS)
#: equal but for the order of sums
CLOSE = {"rtol": 0.0, "atol": 1e-12}


def build(config: Any) -> Any:
    """A model with large weights, so that attention is far from uniform."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "embed" not in name:
                parameter.mul_(15)
            elif parameter.dim() == 2:
                parameter.mul_(50)
    return model.eval()


def tra_model(family: str, **options: Any) -> Any:
    return build(CONFIGS[family](**SIZES, **options))


def stock_model(family: str, **options: Any) -> Any:
    return build(STOCK_CONFIGS[family](**SIZES, **options))


def tokens(rows: int = 2, length: int = 12, seed: int = 0) -> Tensor:
    return torch.randint(3, 32, (rows, length), generator=torch.Generator().manual_seed(seed))


def left_padded(x: Tensor, by: int = 3) -> tuple[Tensor, Tensor]:
    """The same with other tokens in front, and the attention mask that hides them.

    They are not the padding token: its embedding is 0, and TRA drops a key of 0 in any case.
    """
    front = torch.full((len(x), by), 5)
    return torch.cat([front, x], 1), torch.cat([torch.zeros_like(front), torch.ones_like(x)], 1)


transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
