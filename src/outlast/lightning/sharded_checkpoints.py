"""Checkpoints of `ModelParallelStrategy` (FSDP2) that are made while attention is held back.

An optimiser has no state for a parameter that never had a gradient. The strategy refuses to load
such a checkpoint. So `fill` puts a placeholder where a state is missing, and notes for which
parameters. `empty` takes the placeholders out after loading, so the optimiser continues exactly.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.optim import Optimizer

_WRAPPERS = re.compile(r"\b(_orig_mod|_checkpoint_wrapped_module)\.")


def fill(trainer: pl.Trainer, module: nn.Module, checkpoint: dict[str, Any]) -> list[str]:
    """Complete the optimiser states of a checkpoint; the names of the parameters that had none.

    All ranks must call it. Checkpoints of other strategies stay as they are.
    """
    if not isinstance(trainer.strategy, ModelParallelStrategy):
        return []
    missing = {id(p) for optimiser in trainer.optimizers for p in _without_state(optimiser)}
    if missing:
        with _placeholders(trainer.optimizers):
            states = [trainer.strategy.optimizer_state(one) for one in trainer.optimizers]
        checkpoint["optimizer_states"] = states
    return [name for name, parameter in _parameters(module).items() if id(parameter) in missing]


def empty(optimisers: Iterable[Optimizer], module: nn.Module, names: Iterable[str]) -> None:
    """Take out what `fill` put in for these parameters."""
    parameters = _parameters(module)
    for optimiser in optimisers:
        for name in names:
            optimiser.state.pop(parameters[name], None)


def _parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """By name, without what compilation and checkpoint wrappers add, as in the checkpoint."""
    return {_WRAPPERS.sub("", name): parameter for name, parameter in module.named_parameters()}


def _without_state(optimiser: Optimizer) -> list[Tensor]:
    """The parameters without a state, if others have one."""
    if not any(optimiser.state.values()):
        return []
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    return [p for p in parameters if p.requires_grad and not optimiser.state.get(p)]


@contextmanager
def _placeholders(optimisers: Iterable[Optimizer]) -> Iterator[None]:
    added = []
    for optimiser in optimisers:
        missing = _without_state(optimiser)
        for parameter, state in zip(missing, _first_states(optimiser, missing), strict=True):
            optimiser.state[parameter] = state
            added.append((optimiser, parameter))
    try:
        yield
    finally:
        for optimiser, parameter in added:
            del optimiser.state[parameter]


def _first_states(optimiser: Optimizer, parameters: list[Tensor]) -> list[dict[str, Any]]:
    """States of the right form: those of a twin of the optimiser after one step with zeros."""
    stand_ins = {p: nn.Parameter(torch.zeros_like(p)) for p in parameters}
    for stand_in in stand_ins.values():
        stand_in.grad = torch.zeros_like(stand_in)
    twin = copy.copy(optimiser)
    twin.state = defaultdict(dict)
    twin.param_groups = [
        {**group, "params": [stand_ins[p] for p in group["params"] if p in stand_ins]}
        for group in optimiser.param_groups
    ]
    twin.step()
    return [twin.state[stand_ins[p]] for p in parameters]
