"""Which modules of a model are attention, found by what they are.

A name or a class does not tell: in some hybrids the recurrence is called ``self_attn`` too. These
are attention:

- modules with `is_causal` (true) and `num_key_value_groups`. The attention of every hybrid of
  `transformers` has both, and no recurrence has; that of GPT-2 has no groups and is not found,
- `torch.nn.MultiheadAttention`,
- attention mixers of Outlast's own models.

The number found must agree with the layer types of the model's config, if it has one. Modules that
several layers share count once for each layer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from outlast.errors import SpecError
from outlast.mixers.base import Mixer

log = logging.getLogger(__name__)

#: layer types of a config that are a recurrence, as newer and as older configs call them
RECURRENT_TYPES = {"linear_attention", "mamba", "mamba2", "recurrent"}
NAME_THEM = 'choose the modules yourself, for example where="*.self_attn"'


@dataclass(frozen=True)
class ModelWithConfig:
    """A model of `transformers`, or one like it, inside the model that is trained."""

    name: str
    module: nn.Module
    config: Any

    @property
    def layer_types(self) -> list[str] | None:
        """What each layer is; None if the config does not say."""
        text_config = getattr(self.config, "get_text_config", lambda: self.config)()
        for field in ("layer_types", "layers_block_type"):
            kinds = getattr(text_config, field, None)
            if isinstance(kinds, list | tuple) and all(isinstance(kind, str) for kind in kinds):
                return list(kinds)
        return None


def models_with_config(model: nn.Module) -> list[ModelWithConfig]:
    """The outermost modules that have a config."""
    chosen: list[ModelWithConfig] = []
    for name, module in model.named_modules():
        config = vars(module).get("config")
        inside = any(not one.name or name.startswith(f"{one.name}.") for one in chosen)
        if config is not None and not inside:
            chosen.append(ModelWithConfig(name, module, config))
    return chosen


def find_attention(
    model: nn.Module, needs_recurrence: bool, advice: str = NAME_THEM
) -> dict[str, nn.Module]:
    """The attention modules of a model by name, each once.

    Refused: a model without attention, one whose config speaks of another number, and one without
    a recurrence if `needs_recurrence`. `advice` says what to do if the modules are not found.
    """
    attention = {n: m for n, m in model.named_modules() if n and _is_attention(m)}
    attention = {n: m for n, m in attention.items() if not _is_inside(n, attention)}
    kind = type(model).__name__
    if not attention:
        raise SpecError(
            f"model={kind}: no attention found: no module has is_causal and num_key_value_groups "
            f"or is a torch.nn.MultiheadAttention; {advice}"
        )
    for owner in models_with_config(model):
        _check_against_config(owner, advice)
    recurrent = list(_recurrent_layers(model))
    if needs_recurrence and not recurrent:
        raise SpecError(
            f"model={kind}: no recurrence found beside its attention ({listed(attention)}); "
            "without attention no token would see another one in phase 1; take a hybrid model, or "
            "mode=freeze or mode=detach, or pass recurrence=False to delay attention all the same"
        )
    log.info(
        "delayed attention: %d attention modules (%s); recurrence: %s",
        len(attention),
        listed(attention),
        listed(recurrent) if recurrent else "none",
    )
    return attention


def _is_attention(module: nn.Module) -> bool:
    if isinstance(module, Mixer):
        return module.pathway == "attention"
    if isinstance(module, nn.MultiheadAttention):
        return True
    causal = getattr(module, "is_causal", False)
    return isinstance(causal, bool) and causal and hasattr(module, "num_key_value_groups")


def _check_against_config(owner: ModelWithConfig, advice: str) -> None:
    kinds = owner.layer_types
    if kinds is None:
        return
    # all names, because one module may serve several layers
    named = owner.module.named_modules(remove_duplicate=False)
    names = [name for name, module in named if name and _is_attention(module)]
    names = [name for name in names if not _is_inside(name, names)]
    layers = [str(i) for i, kind in enumerate(kinds) if _has_attention(kind)]
    if len(names) != len(layers):
        said = f"in {len(layers)} layers ({listed(layers)})" if layers else "in no layer"
        raise SpecError(
            f"model={type(owner.module).__name__}: its config has attention {said}, but "
            f"{len(names)} attention modules were found ({listed(names)}); {advice}"
        )


def _has_attention(kind: str) -> bool:
    if kind in RECURRENT_TYPES:
        return False
    return "attention" in kind or "sparse" in kind or kind.startswith("hybrid")


def _recurrent_layers(model: nn.Module) -> Iterator[str]:
    """Names of layers and modules that are a recurrence.

    A layer of type ``hybrid`` has one if it convolves outside attention, as every Mamba does. That
    is our guess: such a layer may also be attention with a convolution inside (Zaya).
    """
    for name, module in model.named_modules():
        if _is_recurrence(module):
            yield name
    for owner in models_with_config(model):
        for i, kind in enumerate(owner.layer_types or []):
            if kind in RECURRENT_TYPES:
                yield f"layer {i} ({kind})"
            elif kind.startswith("hybrid") and _convolves_outside_attention(owner.module, i):
                yield f"layer {i} (beside attention)"


def _convolves_outside_attention(module: nn.Module, layer: int) -> bool:
    return bool(_convolving(module, layer))


def _convolving(module: nn.Module, layer: int) -> dict[str, nn.Module]:
    """The modules of a layer that have a convolution of their own, outside attention."""
    inside = {id(inner) for m in module.modules() if _is_attention(m) for inner in m.modules()}
    owners = [
        name.rpartition(".")[0]
        for name, m in module.named_modules()
        if isinstance(m, nn.Conv1d) and id(m) not in inside and str(layer) in name.split(".")
    ]
    return {owner: module.get_submodule(owner) for owner in owners}


def find_recurrence(model: nn.Module) -> dict[str, nn.Module]:
    """The recurrent modules of a model by name, each once.

    In a layer that a config calls recurrent it is the module with the convolution. Such a layer
    without a convolution has no module that can be told from the others.
    """
    recurrent = {n: m for n, m in model.named_modules() if n and _is_recurrence(m)}
    for owner in models_with_config(model):
        for layer, kind in enumerate(owner.layer_types or []):
            if kind in RECURRENT_TYPES or kind.startswith("hybrid"):
                for name, module in _convolving(owner.module, layer).items():
                    recurrent[".".join(filter(None, (owner.name, name)))] = module
    return {n: m for n, m in recurrent.items() if not _is_inside(n, recurrent)}


def _is_recurrence(module: nn.Module) -> bool:
    if isinstance(module, Mixer):
        return module.pathway == "recurrent"
    return isinstance(module, nn.RNNBase | nn.RNNCellBase)


def _is_inside(name: str, others: Iterable[str]) -> bool:
    return any(name.startswith(f"{other}.") for other in others)


def listed(names: Iterable[str]) -> str:
    """The first few names, and how many there are."""
    names = list(names)
    return ", ".join(names[:4]) + (f", ... {len(names)} in all" if len(names) > 4 else "")
