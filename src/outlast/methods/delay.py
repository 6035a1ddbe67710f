"""Delayed attention in your own training loop, on any `nn.Module`, in two lines::

    delayed = outlast.delay(model, "*.attn", switch="below(0.05)")      # before the loop
    ...
    delayed.step(loss)                                                  # after each optimiser step

The sublayers to hold back are chosen by name pattern, by type, or by a function of both. Until
the switch a held-back sublayer adds nothing (`skip`, `ramp`), keeps its weights (`freeze`), or
sends no gradient upstream (`detach`). The optimiser is not touched. It skips sublayers without
gradients.
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from outlast.arguments import coerce
from outlast.errors import SpecError
from outlast.methods.base import Control, Setup
from outlast.methods.triggers import as_step
from outlast.registry import methods
from outlast.specs import Spec, parse_value

#: a step that no training reaches
FOREVER = 2**62
Where = str | type[nn.Module] | Callable[[str, nn.Module], bool] | Iterable["Where"]


def delay(
    model: nn.Module,
    where: Where,
    *,
    mode: Literal["skip", "freeze", "ramp", "detach"] = "skip",
    switch: str | int | float = "below(0.01)",
    steps: int | None = None,
    latest: int | float | None = None,
    ramp: int = 500,
) -> Delay:
    """Hold back the sublayers of `model` that `where` chooses, until `switch`.

    `switch` is a step, a share of `steps`, or ``"below(0.01)"`` or ``"plateau"`` on the smoothed
    loss given to `step`. `latest` is the step (or share) by which it happens in any case.
    """
    chosen = [(n, m) for n, m in model.named_modules() if n and _matches(where, n, m)]
    chosen = [(n, m) for n, m in chosen if not any(n.startswith(f"{o}.") for o, _ in chosen)]
    if not chosen:
        names = [n for n, _ in model.named_modules() if n]
        first_names = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        modules = f"its modules are: {first_names}" if names else "it has no modules inside"
        raise SpecError(f"where={where}: no module of the model matches; {modules}")
    value = parse_value(switch) if isinstance(switch, str) else switch
    if not isinstance(value, int | float):
        value = coerce(value, Spec, "switch")
    spec = Spec(
        "dat",
        (),
        (
            ("mode", mode),
            ("switch", value if isinstance(value, Spec) else _step(value, steps, "switch")),
            ("phase1", "full"),
            ("rewarm", 0),
            ("ramp", ramp),
            ("latest", FOREVER if latest is None else _step(latest, steps, "latest")),
        ),
    )
    method = methods.build(spec)  # a bad argument is an error before the model is touched
    return Delay([_Held(m) for _, m in chosen], method)


class Delay:
    """The handle that `delay` returns: `step` it, save it, remove it."""

    def __init__(self, held: list[_Held], method: Any) -> None:
        self._held, self._method = held, method
        self._setup = Setup(FOREVER, ("loss",), (1, 1))
        self._state = method.begin(self._setup)
        self._steps = 0
        self._apply()

    def step(self, loss: float | Tensor) -> bool:
        """Count one optimiser step with this loss. True at the step that switches."""
        self._steps += 1
        before = self.switched
        value = float(loss.detach() if isinstance(loss, Tensor) else loss)
        self._method.observe(self._steps, {"loss": [value]}, self._state)
        self._apply()
        return before is None and self.switched is not None

    @property
    def switched(self) -> int | None:
        """The step at which attention was let in, or None."""
        return self._state["switched"]  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, Any]:
        """The state as plain JSON, for `load_state_dict` on resume."""
        return {"steps": self._steps, "state": copy.deepcopy(self._state)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self._steps, self._state = saved["steps"], copy.deepcopy(saved["state"])
        self._apply()

    def remove(self) -> None:
        """Restore the model."""
        for held in self._held:
            held.remove()
        self._held = []

    def _apply(self) -> None:
        control = Control.plain(self._setup)
        self._method.control(self._steps, self._state, control)
        for held in self._held:
            held.set(
                control.gate["attention"],
                control.upstream_grad["attention"],
                control.rate["attention"],
            )


class _Held:
    """One sublayer whose forward call is gated."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.forward = module, module.forward
        self.patched = "forward" in vars(module)  # by other code before us
        self.learning = [p for p in module.parameters() if p.requires_grad]
        self.gate, self.upstream_grad = 1.0, 1.0
        self.shape_known = False
        module.forward = self._call  # type: ignore[method-assign]
        # In eval mode torch's own Transformer layers run a fused path that skips every `forward`
        # inside them, unless there is a hook.
        self.hook = module.register_forward_pre_hook(_no_op)

    def set(self, gate: float, upstream_grad: float, rate: float) -> None:
        self.gate, self.upstream_grad = gate, upstream_grad
        for parameter in self.learning:
            parameter.requires_grad_(rate > 0)

    def remove(self) -> None:
        self.hook.remove()
        if self.patched:
            self.module.forward = self.forward  # type: ignore[method-assign]
        else:
            del self.module.forward
        for parameter in self.learning:
            parameter.requires_grad_(True)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if self.gate == 0:
            return self._closed(args, kwargs)
        if self.upstream_grad == 0:
            args = tuple(_detached(a) for a in args)
            kwargs = {k: _detached(v) for k, v in kwargs.items()}
        out = self.forward(*args, **kwargs)
        return out if self.gate == 1 else _scaled(out, self.gate)

    def _closed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Zeros. Once the output is known to have the shape of the input, nothing is run."""
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        if self.shape_known and tensors:
            return torch.zeros_like(tensors[0])
        with torch.no_grad():
            out = self.forward(*args, **kwargs)
        same_shape = isinstance(out, Tensor) and bool(tensors) and out.shape == tensors[0].shape
        self.shape_known = same_shape
        return _scaled(out, 0.0)


def _step(value: int | float, steps: int | None, field: str) -> int:
    """A step, or a share of `steps`, as a step."""
    if isinstance(value, float) and steps is None:
        raise SpecError(f"{field}={value}: a share of training needs steps=, the number of steps")
    return as_step(value, steps or FOREVER, field)


def _matches(where: Where, name: str, module: nn.Module) -> bool:
    if isinstance(where, str):
        return fnmatch.fnmatchcase(name, where)
    if isinstance(where, type):
        return isinstance(module, where)
    if callable(where):
        return bool(where(name, module))
    return any(_matches(w, name, module) for w in where)


def _no_op(module: nn.Module, args: Any) -> None:
    """A hook that does nothing (and can be pickled)."""


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _scaled(out: Any, gate: float) -> Any:
    """Scale what a sublayer adds: the tensor, or the first of a tuple (the rest is kept)."""
    if isinstance(out, Tensor):
        return torch.zeros_like(out) if gate == 0 else out * gate
    if isinstance(out, tuple) and out and isinstance(out[0], Tensor):
        items = (_scaled(out[0], gate), *out[1:])
        make: Any = getattr(type(out), "_make", type(out))  # named tuples are built differently
        return make(items)
    raise SpecError(
        "a held-back sublayer must return a tensor or a tuple that begins with one, "
        f"got {type(out).__name__}"
    )
