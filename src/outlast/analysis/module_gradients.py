"""Gradient attribution for any `torch.nn.Module` with attention and a recurrence.

::

    rows = module_gradients(model, lambda: model(tokens, labels=tokens).loss)

Attention is found as `outlast.delay` finds it: `torch.nn.MultiheadAttention`, the attention of
`transformers`, mixers of ours. Its inputs are detached by hooks, for the second of two passes.
Recurrent are `torch.nn.LSTM` and its kin, recurrent mixers of ours, and in a layer that the config
of a `transformers` model calls recurrent the modules that convolve, as every Mamba and gated delta
rule there does (our guess). Either can be named instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from outlast.analysis.foreign import named_modules
from outlast.analysis.gradients import requiring_gradients, split_gradient, tabulate
from outlast.analysis.sequences import NothingToSeeError
from outlast.arguments import shown
from outlast.errors import bad_value
from outlast.methods.delay.discovery import RECURRENT_TYPES, find_attention, models_with_config
from outlast.mixers.base import Mixer
from outlast.runs.analyses import Row

LOSSES = "a function that returns one number with a gradient, or several in a dict, by name"
#: one loss, or several by the name of the part of the task
Loss = Callable[[], Tensor | Mapping[str, Tensor]]


def module_gradients(
    model: nn.Module,
    loss: Loss,
    attention: Sequence[str] | None = None,
    recurrent: Sequence[str] | None = None,
    final: Mapping[str, Tensor] | None = None,
) -> list[Row]:
    """The table of a model as it is, in the mode that it is in; see `analysis.gradients`.

    A layer of the table is a recurrent module, by its name; one without weights has no rows. The
    model is left as it was.

    Args:
        model: Any model.
        loss: Runs the model on a batch and returns the loss, or the losses by part. It is called
            twice, with the same random numbers.
        attention: Names or patterns of the attention modules, such as ``*.self_attn``; by default
            they are found.
        recurrent: The same of recurrent modules.
        final: Final weights by name, such as a `state_dict`, for the cosines that are about them.
    """
    if not callable(loss):
        raise bad_value("loss", shown(loss), LOSSES)
    attending = (
        find_attention(model, False, 'name them, as in attention=["*.self_attn"]')
        if attention is None
        else named_modules(model, attention, "attention")
    )
    recurring = (
        find_recurrent(model) if recurrent is None else named_modules(model, recurrent, "recurrent")
    )
    named = dict(model.named_parameters())
    name_of = {weight: name for name, weight in named.items()}  # one for weights that are shared
    names = {
        name: [name_of[weight] for weight in module.parameters()]
        for name, module in recurring.items()
        if any(True for _ in module.parameters())
    }
    if not names:
        raise bad_value("recurrent", ", ".join(recurring), "modules that have weights")
    weights = {name: named[name] for several in names.values() for name in several}
    parts: list[str] = []

    def losses(upstream: bool) -> Tensor:
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            if not upstream:
                stack.enter_context(detached_inputs(attending.values()))
            by_part = _by_part(loss())
        parts[:] = by_part
        return torch.stack([value.reshape(()) for value in by_part.values()])[None]

    toward = None
    if final is not None:
        missing = [n for n, w in weights.items() if n not in final or final[n].shape != w.shape]
        if missing:
            raise bad_value("final", missing[0], "weights by the names that the model has for them")
        toward = {n: (final[n].to(w) - w).detach()[None] for n, w in weights.items()}
    with requiring_gradients(weights.values()):
        split = split_gradient([losses], weights)
    (rows,) = tabulate(split, names, parts, torch.ones_like(split.losses), toward)
    return rows


def _by_part(result: object) -> dict[str, Tensor]:
    """The losses by part that the caller's function returned; anything else is refused."""
    by_part = dict(result) if isinstance(result, Mapping) else {"loss": result}
    if not by_part:
        raise bad_value("loss", shown(result), LOSSES)
    losses: dict[str, Tensor] = {}
    for part, value in by_part.items():
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            kind = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else value
            raise bad_value(f"loss: {part}", shown(kind), LOSSES)
        losses[str(part)] = value
    return losses


@contextmanager
def detached_inputs(modules: Iterable[nn.Module]) -> Iterator[None]:
    """What enters some modules sends no gradient back meanwhile."""

    def detach(_: nn.Module, args: Any, kwargs: Any) -> Any:
        return tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, (args, kwargs))

    hooks = [m.register_forward_pre_hook(detach, with_kwargs=True) for m in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def find_recurrent(model: nn.Module) -> dict[str, nn.Module]:
    """The recurrent modules of a model by name, each once; a model without any is refused."""
    modules: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        recurrent_mixer = isinstance(module, Mixer) and module.holds_state
        if recurrent_mixer or isinstance(module, nn.RNNBase | nn.RNNCellBase):
            modules[name] = module
    for owner in models_with_config(model):
        for number, kind in enumerate(owner.layer_types or []):
            if kind in RECURRENT_TYPES:
                modules |= _convolving(owner.name, owner.module, number)
    if not modules:
        raise NothingToSeeError(
            f"model={type(model).__name__}: no recurrence found: no module is a torch.nn.RNN, LSTM "
            f'or GRU, and no config names recurrent layers; name them, as in recurrent=["*.mixer"]'
        )
    return modules


def _convolving(prefix: str, model: nn.Module, layer: int) -> dict[str, nn.Module]:
    """The modules of a layer that convolve, somewhere in them."""
    modules = {}
    for name, module in model.named_modules():
        is_of_layer = name.split(".")[-2:-1] == [str(layer)]
        if is_of_layer and any(isinstance(m, nn.Conv1d) for m in module.modules()):
            modules[".".join(filter(None, (prefix, name)))] = module
    return modules
