"""Threshold relative attention (2503.23174) in Llama, Qwen3 and Mistral of `transformers`.

A name for `attn_implementation` cannot make a model TRA. Rotation comes before that interface, and
the gate needs hidden states, which the interface is not given. A stock class would drop the gates
on load and silently be RoPE again. So these are model types of their own: `tra_llama`, `tra_qwen3`
and `tra_mistral`. `register` makes them known to `AutoConfig`, `AutoModel` and
`AutoModelForCausalLM`; ``import outlast.hf`` calls it. A process without outlast cannot load such a
model: its type is unknown there.

    config = TraLlamaConfig(hidden_size=768, ...)
    model = AutoModelForCausalLM.from_config(config)       # from nothing
    model = to_tra(AutoModelForCausalLM.from_pretrained("..."))  # from a RoPE model, to train on
"""

from outlast.hf.tra.config import TraLlamaConfig, TraMistralConfig, TraQwen3Config
from outlast.hf.tra.convert import to_tra
from outlast.hf.tra.models import (
    TraLlamaForCausalLM,
    TraLlamaModel,
    TraMistralForCausalLM,
    TraMistralModel,
    TraQwen3ForCausalLM,
    TraQwen3Model,
    register,
)

__all__ = [
    "TraLlamaConfig",
    "TraLlamaForCausalLM",
    "TraLlamaModel",
    "TraMistralConfig",
    "TraMistralForCausalLM",
    "TraMistralModel",
    "TraQwen3Config",
    "TraQwen3ForCausalLM",
    "TraQwen3Model",
    "register",
    "to_tra",
]
