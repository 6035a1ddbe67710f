"""A small forward pass of a model, for `flow.watch`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from outlast.errors import SpecError
from outlast.methods.delay.discovery import models_with_config
from outlast.methods.delay.flow import Flow, watch

log = logging.getLogger(__name__)

TOKENS = 4


def find_flow(
    model: nn.Module, attention: dict[str, nn.Module], example: Any, needed: bool
) -> Flow | None:
    """Where attention's output is added; None if the model cannot tell.

    A model of `transformers` is called with a few tokens, any other one with `example`. `needed`:
    an obstacle is an error, because the gate must scale what attention adds.
    """
    call = _from_example(model, example) if example is not None else _from_tokens(model)
    if call is None:
        return None
    obstacle = _sharded(model)
    if obstacle is None:
        try:
            with torch.compiler.set_stance("force_eager"):
                flow = watch(model, attention, call)
            obstacle = flow.obstacle
        except Exception as error:  # whatever the model raises
            obstacle = f"a small forward pass failed: {type(error).__name__}: {error}"
    if obstacle is None:
        return flow
    if needed:
        raise SpecError(
            f"mode=ramp: cannot find where attention joins the residual stream: {obstacle}; use "
            "mode=skip, or choose by where= the modules whose output is added"
        )
    log.info("delayed attention: only attention itself is held back: %s", obstacle)
    return None


def _from_example(model: nn.Module, example: Any) -> Callable[[], Any]:
    if isinstance(example, dict):
        return lambda: model(**example)
    if isinstance(example, tuple):
        return lambda: model(*example)
    return lambda: model(example)


def _from_tokens(model: nn.Module) -> Callable[[], Any] | None:
    """A call with a few tokens, if the model is one of `transformers` that takes them."""
    for one in models_with_config(model):
        parameters = inspect.signature(one.module.forward).parameters
        if "input_ids" in parameters and hasattr(one.config, "to_dict"):
            kwargs = {"use_cache": False} if "use_cache" in parameters else {}
            return lambda: one.module(input_ids=_tokens(one.module), **kwargs)
    return None


def _tokens(module: nn.Module) -> Tensor:
    embedding = module.get_input_embeddings() if hasattr(module, "get_input_embeddings") else module  # type: ignore[operator]
    device = next(embedding.parameters()).device
    return torch.ones(1, TOKENS, dtype=torch.long, device=device)


def _sharded(model: nn.Module) -> str | None:
    """Why a pass of this model alone is not possible, if it is not."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            return f"{name} has no data yet (meta device); call outlast.delay later"
        if any(hasattr(parameter, mark) for mark in ("device_mesh", "ds_id", "_is_flat_param")):
            return "parameters are sharded over ranks; call outlast.delay before that"
    return None
