"""The optimiser does not move what is held back.

An optimiser of torch skips parameters without a gradient: no step, no weight decay, no momentum.
So gradients that must not count are set to None before each optimiser step. There are two kinds:

- any gradient of a held-back parameter, for example one left over from before,
- zeros that `DistributedDataParallel` writes for parameters that got no gradient at all. One
  process would leave None there, and several must do the same.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle


class GradientGuard:
    """Drops gradients before each step of any optimiser, between `start` and `stop`."""

    def __init__(self, model: nn.Module, held: Iterable[nn.Module], keep_shared: bool) -> None:
        self._model, self._held = model, list(held)
        inside = {id(m) for module in self._held for m in module.modules()}
        outside = [m for m in model.modules() if id(m) not in inside]
        #: parameters that other modules train too
        self._shared = {id(p) for m in outside for p in m.parameters(recurse=False)}
        if not keep_shared:
            self._shared = set()
        self._drops_held = False
        self._hook: RemovableHandle | None = None
        self._tracking: list[RemovableHandle] = []
        self._reached: set[int] = set()

    def start(self, drops_held: bool) -> None:
        """Begin to drop gradients; those of the held-back sublayers only if `drops_held`."""
        self._drops_held = drops_held
        self._drop_held()
        if self._hook is None:
            self._hook = register_optimizer_step_pre_hook(
                functools.partial(_before_step, weakref.ref(self))
            )
            weakref.finalize(self, self._hook.remove)

    def stop(self) -> None:
        self._drop_held()
        self._drops_held = False
        for hook in [*self._tracking, *([self._hook] if self._hook else [])]:
            hook.remove()
        self._hook, self._tracking = None, []
        self._reached.clear()

    def track(self) -> None:
        """Note from now on which parameters of the model get a gradient."""
        if self._tracking or self._hook is None:
            return
        note = functools.partial(_note, self._reached)
        self._tracking = [
            parameter.register_post_accumulate_grad_hook(note)
            for parameter in self._model.parameters()
            if parameter.requires_grad
        ]

    def drop(self, optimiser: Optimizer) -> None:
        """Drop what must not count in the next step of this optimiser."""
        self._drop_held()
        if not self._tracking:
            return
        tracked = {id(p) for p in self._model.parameters()}
        for parameter in [p for group in optimiser.param_groups for p in group["params"]]:
            unreached = id(parameter) in tracked and id(parameter) not in self._reached
            if unreached and parameter.grad is not None and not parameter.grad.any():
                parameter.grad = None
            self._reached.discard(id(parameter))

    def _drop_held(self) -> None:
        if not self._drops_held:
            return
        for module in self._held:
            for parameter in module.parameters():
                if id(parameter) not in self._shared:
                    parameter.grad = None


def _note(reached: set[int], parameter: Tensor) -> None:
    """Called after the backward pass has visited a parameter, with or without a gradient."""
    if parameter.grad is not None:
        reached.add(id(parameter))


def _before_step(
    guard_ref: weakref.ref[GradientGuard],
    optimiser: Optimizer,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Drop gradients now, and again after a closure has computed new ones."""
    guard = guard_ref()
    if guard is None:
        return None
    guard.drop(optimiser)
    if kwargs.get("closure") is not None:
        return args, {**kwargs, "closure": _then_drop(kwargs["closure"], guard, optimiser)}
    if len(args) > 1 and callable(args[1]):
        return (args[0], _then_drop(args[1], guard, optimiser), *args[2:]), kwargs
    return None


def _then_drop(
    closure: Callable[[], Any], guard: GradientGuard, optimiser: Optimizer
) -> Callable[[], Any]:
    @functools.wraps(closure)
    def wrapped() -> Any:
        loss = closure()
        guard.drop(optimiser)
        return loss

    return wrapped
