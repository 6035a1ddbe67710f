"""What a model returns, as logits; and a model in eval mode for as long as it is measured.

A model of someone else may return a tensor, a numpy array, a tuple or an object. What is not
understood is refused: a number for it would mislead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from outlast.arguments import shown
from outlast.errors import OutlastError
from outlast.tasks import Batch

ACCEPTED = (
    "logits (batch, tokens, classes) as a tensor or a numpy array, a tuple that begins with them, "
    "or an object or dict with 'logits'"
)
#: where the logits are if a model returns nothing else
PLAIN = "the output itself"


def read_logits(output: object, model: object = None) -> tuple[Tensor, str]:
    """The logits in what a model returned, and where they were, in words."""
    source, value = _find(output)
    if isinstance(value, np.ndarray):
        source += " as a numpy array"
        value = _from_numpy(value)
    if not isinstance(value, Tensor):
        raise OutlastError(f"the model returned {_describe(output)}: expected {ACCEPTED}")
    _check_plain(value)
    if not _has_attribute(output, "logits"):
        _check_head(model, value)
    return value, source


def check_shape(logits: Tensor, batch: Batch, outputs: int) -> None:
    """Refuse logits that have no row for each token, or fewer than so many outputs."""
    wanted = (*batch.inputs.shape, outputs)
    if logits.ndim != 3 or logits.shape[:2] != wanted[:2] or logits.shape[2] < outputs:
        raise OutlastError(
            f"the model's output is of shape {tuple(logits.shape)}: expected {wanted} or more "
            f"in the last axis, a score for each answer at each token"
        )


def _find(output: object) -> tuple[str, object]:
    if _has_attribute(output, "logits"):
        return f"the logits of a {type(output).__name__}", output.logits  # type: ignore[attr-defined]
    if isinstance(output, Mapping):
        return "the logits of a dict", output.get("logits")
    if isinstance(output, tuple):
        return "the first item of a tuple", output[0] if output else None
    return PLAIN, output


def _has_attribute(value: object, name: str) -> bool:
    """Whether an object has an attribute with something in it."""
    return not isinstance(value, Tensor | np.ndarray) and getattr(value, name, None) is not None


def _from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    try:
        return torch.from_numpy(np.array(array, order="C"))  # a copy: it may be read-only
    except (TypeError, ValueError):
        raise OutlastError(
            f"the model's logits are a numpy array of {array.dtype}: expected numbers, such as "
            f"float32"
        ) from None


def _check_plain(logits: Tensor) -> None:
    """Refuse a tensor that has no numbers to compare."""
    problems = {
        f"of {logits.dtype}": logits.is_complex() or logits.dtype is torch.bool,
        "a nested tensor": logits.is_nested,
        f"{logits.layout}": logits.layout is not torch.strided,
        "on the device 'meta'": logits.is_meta,
    }
    for problem, present in problems.items():
        if present:
            raise OutlastError(
                f"the model's logits are {problem}: expected a plain tensor of reals"
            )


def _describe(output: object) -> str:
    """What came, as an error says it."""
    if isinstance(output, Mapping):
        keys = ", ".join(map(str, output)) or "nothing in it"
        return f"a {type(output).__name__} without 'logits' (it has {keys}){_hint(output)}"
    if isinstance(output, tuple):
        first = f"begins with {shown(output[0])}" if output else "is empty"
        return f"a tuple that {first}"
    return f"{shown(output)}{_hint(output)}"


def _hint(output: object) -> str:
    headless = isinstance(output, Mapping) and "last_hidden_state" in output
    if headless or _has_attribute(output, "last_hidden_state"):
        return "; these are hidden states, so take a model with a head, such as ...ForCausalLM"
    return ""


def _check_head(model: object, logits: Tensor) -> None:
    """Refuse a Hugging Face model without a head: its first output are hidden states."""
    owner = getattr(model, "__self__", model)  # of a method such as model.forward
    owner = getattr(owner, "module", owner)  # inside DataParallel and the like
    embeddings = getattr(owner, "get_output_embeddings", None)
    width = getattr(getattr(owner, "config", None), "hidden_size", None)
    if callable(embeddings) and embeddings() is None and logits.shape[-1:] == (width,):
        raise OutlastError(
            f"{type(owner).__name__} has no output embeddings and returned {width} numbers for "
            f"each token, its hidden_size: these are hidden states, so take a model with a head, "
            f"such as ...ForCausalLM"
        )


@contextmanager
def eval_mode(model: object) -> Iterator[None]:
    """A module, or the module of a method such as ``model.forward``, in eval mode meanwhile.

    Afterwards each submodule is in the mode it was in, also after an error.
    """
    owner = getattr(model, "__self__", model)
    module = owner if isinstance(owner, nn.Module) else nn.Module()
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    try:
        if any(training for _, training in modes):
            with suppress(NotImplementedError):  # an exported program has one mode only
                module.eval()
        yield
    finally:
        for submodule, training in modes:  # from the outside in: `train` reaches all below
            if submodule.training != training:
                submodule.train(training)
        for submodule, training in modes:  # one that two modules share
            if submodule.training != training:
                submodule.training = training
