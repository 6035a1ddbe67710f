"""The TRA model types: stock models with TRA in place of rotation and softmax attention."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    LlamaForCausalLM,
    LlamaModel,
    MistralForCausalLM,
    MistralModel,
    PreTrainedModel,
    Qwen3ForCausalLM,
    Qwen3Model,
)
from transformers import initialization as init
from transformers.models.llama.modeling_llama import LlamaAttention
from transformers.models.mistral.modeling_mistral import MistralAttention
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from outlast.errors import require
from outlast.hf.tra.attention import NAME, TraAttention, TraGate, tra_attention, tra_mask
from outlast.hf.tra.config import TraLlamaConfig, TraMistralConfig, TraQwen3Config, check_config


class NoRotation(nn.Module):
    """In the place of the rotary embedding: none. Stock attention would fail on it, loudly."""

    def forward(self, x: Tensor, position_ids: Tensor | None = None) -> None:
        """Nothing to rotate by."""


class TraPreTrained:
    """What a TRA model refuses and how its gates start; it stands before the stock class."""

    _supports_sdpa = False
    _supports_flash_attn = False
    _supports_flex_attn = False
    # a static cache's offset is read once in each step, which ends a graph
    _can_compile_fullgraph = False

    def _check_and_adjust_attn_implementation(
        self, attn_implementation: str | None, *_: Any, **__: Any
    ) -> str:
        require(
            attn_implementation in (None, NAME),
            "attn_implementation",
            attn_implementation,
            f"{NAME}: {type(self).__name__} has no other attention",
        )
        return NAME

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[misc]
        if isinstance(module, TraGate):
            init.constant_(module.bias, self.config.tra_gate_bias)  # type: ignore[attr-defined]


class TraBody(TraPreTrained):
    """A model without a head."""

    attention: ClassVar[type[TraAttention]]

    def __init__(self, config: Any) -> None:
        check_config(config)  # its fields may have been changed since it was made
        super().__init__(config)  # type: ignore[call-arg]
        body: Any = self
        body.rotary_emb = NoRotation()
        for index, layer in enumerate(body.layers):
            layer.self_attn = self.attention(config, index)
        body.post_init()


class TraForCausalLM(TraPreTrained):
    """A language model."""

    body: ClassVar[type[TraBody]]

    def __init__(self, config: Any) -> None:
        PreTrainedModel.__init__(self, config)  # the stock class would build a stock body first
        model: Any = self
        model.model = self.body(config)
        model.vocab_size = config.vocab_size
        model.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        model.post_init()


class TraLlamaAttention(TraAttention, LlamaAttention):
    """Llama's projections."""


class TraQwen3Attention(TraAttention, Qwen3Attention):
    """Qwen3's projections, with its norms of q and k."""


class TraMistralAttention(TraAttention, MistralAttention):
    """Mistral's projections."""


class TraLlamaModel(TraBody, LlamaModel):
    """Llama's body with TRA."""

    config_class = TraLlamaConfig
    attention = TraLlamaAttention


class TraQwen3Model(TraBody, Qwen3Model):
    """Qwen3's body with TRA."""

    config_class = TraQwen3Config
    attention = TraQwen3Attention


class TraMistralModel(TraBody, MistralModel):
    """Mistral's body with TRA."""

    config_class = TraMistralConfig
    attention = TraMistralAttention


class TraLlamaForCausalLM(TraForCausalLM, LlamaForCausalLM):
    """Llama with TRA."""

    config_class = TraLlamaConfig
    body = TraLlamaModel


class TraQwen3ForCausalLM(TraForCausalLM, Qwen3ForCausalLM):
    """Qwen3 with TRA."""

    config_class = TraQwen3Config
    body = TraQwen3Model


class TraMistralForCausalLM(TraForCausalLM, MistralForCausalLM):
    """Mistral with TRA."""

    config_class = TraMistralConfig
    body = TraMistralModel


#: by the stock class
LANGUAGE_MODELS: dict[type, Any] = {
    LlamaForCausalLM: TraLlamaForCausalLM,
    Qwen3ForCausalLM: TraQwen3ForCausalLM,
    MistralForCausalLM: TraMistralForCausalLM,
}


def register() -> None:
    """Make the TRA types known to the Auto classes, and `tra` to the attention interfaces.

    It may be called again. ``import outlast.hf`` calls it.
    """
    AttentionInterface.register(NAME, tra_attention)
    AttentionMaskInterface.register(NAME, tra_mask)
    for language_model in LANGUAGE_MODELS.values():
        config = language_model.config_class
        AutoConfig.register(config.model_type, config, exist_ok=True)
        AutoModel.register(config, language_model.body, exist_ok=True)
        AutoModelForCausalLM.register(config, language_model, exist_ok=True)
