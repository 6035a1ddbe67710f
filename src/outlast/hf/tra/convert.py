"""`to_tra`: a pretrained RoPE model as the start of a TRA model."""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch
from transformers import PreTrainedModel

from outlast.arguments import shown
from outlast.errors import bad_value, require
from outlast.hf.tra.attention import TraGate
from outlast.hf.tra.models import LANGUAGE_MODELS, register

log = logging.getLogger(__name__)
#: fields of a config that belong to the model it came from
_OF_THE_OLD = ("model_type", "architectures", "transformers_version", "rope_parameters")


def to_tra(
    model: PreTrainedModel,
    *,
    threshold: float | None = 0.0,
    norm: bool = True,
    gate_bias: float = 0.0,
    seed: int = 0,
) -> PreTrainedModel:
    """A TRA model with the weights of a Llama, Qwen3 or Mistral, for continued training.

    It is not the same model: what is lost is logged as a warning. All it knew of positions is gone,
    and it has to be trained before it is of use. How well that goes is not known; the paper trains
    from nothing.

    Args:
        model: `LlamaForCausalLM`, `Qwen3ForCausalLM` or `MistralForCausalLM`, with all weights on
            one device. The new model *shares* its weights: nothing is copied, and training one
            changes the other. Drop the old one, or give ``copy.deepcopy(model)``.
        threshold: As `tra_threshold` of the config.
        norm: As `tra_norm` of the config. False keeps the trained size of the scores.
        gate_bias: As `tra_gate_bias` of the config. Larger than 0 starts nearer to plain attention.
        seed: Of the gates' weights, the only ones that are drawn.

    Returns:
        `TraLlamaForCausalLM`, `TraQwen3ForCausalLM` or `TraMistralForCausalLM`, in the type, on the
        device and in the mode (train or eval) of `model`.
    """
    kind = LANGUAGE_MODELS.get(type(model))
    if kind is None:
        accepted = " | ".join(stock.__name__ for stock in LANGUAGE_MODELS)
        raise bad_value("model", f"a {type(model).__name__}", accepted)
    require(not getattr(model, "is_quantized", False), "model", "a quantised one", "plain weights")
    devices = {str(p.device) for p in model.parameters()}
    require(len(devices) == 1, "model", f"on {', '.join(sorted(devices))}", "one on one device")
    window = getattr(model.config, "sliding_window", None)
    advice = "None; set model.config.sliding_window = None to let it see the whole past"
    require(window is None, "sliding_window", shown(window), advice)

    register()
    kept = {k: v for k, v in model.config.to_dict().items() if k not in _OF_THE_OLD}
    kept |= {"tra_threshold": threshold, "tra_norm": norm, "tra_gate_bias": gate_bias}
    config = kind.config_class(**kept | {"attention_dropout": 0.0})
    with torch.device("meta"):
        new: Any = kind(config)
    new.load_state_dict(model.state_dict(), strict=False, assign=True)
    new.tie_weights()
    _start_gates(new, model, seed)
    for name, parameter in model.named_parameters():
        new.get_parameter(name).requires_grad_(parameter.requires_grad)
    new.generation_config = copy.deepcopy(model.generation_config)
    log.warning("to_tra: %s", " ".join(_losses(model, config)))
    return new.train(model.training)  # type: ignore[no-any-return]


def _start_gates(new: Any, model: PreTrainedModel, seed: int) -> None:
    """Draw the gates on the CPU, so that a seed means the same everywhere."""
    generator = torch.Generator().manual_seed(seed)
    gates = [m for m in new.modules() if isinstance(m, TraGate)]
    like = model.get_input_embeddings().weight
    for gate in gates:
        drawn = torch.randn(gate.weight.shape, generator=generator) * new.config.initializer_range
        gate.weight = torch.nn.Parameter(drawn.to(like.device, like.dtype))
        bias = torch.full(gate.bias.shape, float(new.config.tra_gate_bias))
        gate.bias = torch.nn.Parameter(bias.to(like.device, like.dtype))


def _losses(model: PreTrainedModel, config: Any) -> list[str]:
    """What the new model does not have, a sentence each."""
    kind = (getattr(model.config, "rope_parameters", None) or {}).get("rope_type", "default")
    sentences = [
        f"The rotation (rope_type {kind}) is gone, and with it all the model knew of positions.",
        "The gates, which count distance over kept keys, are new and untrained.",
    ]
    if config.tra_threshold is not None:
        sentences.append(f"Keys with a score of {config.tra_threshold:g} or less have no weight.")
    if config.tra_norm:
        sentences.append("Queries and keys are normalised: the trained size of scores is gone.")
    if model.config.attention_dropout:
        sentences.append(f"The attention dropout of {model.config.attention_dropout} is gone.")
    return [*sentences, "Train it before you use it. Its weights are those of the old model."]
