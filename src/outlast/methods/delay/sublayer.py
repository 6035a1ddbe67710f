"""One sublayer whose forward call is gated."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module

from outlast.methods.delay.distributed import keep_in_graph, waits_for_all
from outlast.methods.delay.skipping import (
    Outline,
    detach,
    first_tensor,
    kind_of_call,
    outline,
    tensors,
    with_first_tensor,
)

Phase = Literal["closed", "between", "open"]
#: kinds of calls that a sublayer remembers
REMEMBERED = 1024


class Gate:
    """What all sublayers of one delay share.

    A deep copy of the model shares it too. So a copy opens when the model opens. A pickled copy
    gets a gate of its own, and a new `delay` may take it over.
    """

    def __init__(self) -> None:
        self.handle: weakref.ref[Any] | None = None
        self.track: weakref.WeakMethod[Any] | None = None
        #: the output factor for compiled models. A tensor may change without a new compilation.
        self.factor = torch.ones((), dtype=torch.float64)
        self.open()

    def open(self) -> None:
        self.set(1.0, 1.0, True)

    def set(self, output: float, upstream_grad: float, learns: bool) -> None:
        """Scale outputs and gradients upstream, and let the weights learn or not."""
        self.output, self.upstream_grad, self.learns = output, upstream_grad, learns
        self.phase: Phase = "closed" if output == 0 else "open" if output == 1 else "between"
        self.factor.fill_(output)

    def __deepcopy__(self, memo: dict[int, Any]) -> Gate:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "handle": None, "track": None}


class HeldSublayer:
    """Replaces the forward of a module until `remove`.

    `scales`: the output is added to the residual stream, so a gate that is half open scales it.
    """

    def __init__(self, module: nn.Module, gate: Gate, scales: bool = True) -> None:
        self.module, self.gate, self.forward = module, gate, module.forward
        self.scales = scales
        self.was_patched = "forward" in vars(module)  # by other code before us
        self.outlines: dict[Hashable, Outline | None] = {}
        self.kept_in_graph = False
        module.forward = self._call  # type: ignore[method-assign]
        # In eval mode torch's own Transformer layers run a fused path that skips every `forward`
        # inside them, unless there is a hook.
        self.hook = module.register_forward_pre_hook(_no_op)

    @staticmethod
    def of(module: nn.Module) -> HeldSublayer | None:
        """The sublayer that holds this module, if any."""
        holder = getattr(vars(module).get("forward"), "__self__", None)
        return holder if isinstance(holder, HeldSublayer) else None

    def remove(self) -> None:
        self.hook.remove()
        if HeldSublayer.of(self.module) is not self:
            return  # other code has wrapped our forward; it stays inside, with an open gate
        if self.was_patched:
            self.module.forward = self.forward  # type: ignore[method-assign]
        else:
            del self.module.forward

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        gate, inputs = self.gate, list(tensors((args, kwargs)))
        if gate.phase == "closed":
            return self._visit(self._skipped(args, kwargs), [*self.module.parameters(), *inputs])
        if gate.upstream_grad == 0:
            out = self.forward(*detach(args), **{k: detach(v) for k, v in kwargs.items()})
            return self._visit(out, inputs)
        if not gate.learns:
            with _frozen(self.module):
                out = self.forward(*args, **kwargs)
            return self._visit(out, list(self.module.parameters()))
        out = self.forward(*args, **kwargs)
        if gate.phase == "open" or not self.scales:
            return out
        factor = gate.factor if torch.compiler.is_compiling() else gate.output
        return with_first_tensor(out, first_tensor(out) * factor)

    def _skipped(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling():  # the compiler itself removes what is not used
            with torch.no_grad():
                out = self.forward(*args, **kwargs)
            return with_first_tensor(out, torch.zeros_like(first_tensor(out)))
        kind = kind_of_call(self.module, args, kwargs)
        known = self.outlines.get(kind)
        if known is not None:
            return known.zeros()
        # No random numbers are drawn here. Otherwise a resumed run would draw others.
        gpus = {t.device.index for t in tensors((args, kwargs)) if t.is_cuda}
        with torch.no_grad(), torch.random.fork_rng(devices=sorted(gpus)):
            out = self.forward(*args, **kwargs)
        if kind is not None:
            if len(self.outlines) >= REMEMBERED:
                self.outlines.clear()
            self.outlines[kind] = outline(out, (args, kwargs))
        return with_first_tensor(out, torch.zeros_like(first_tensor(out)))

    def _visit(self, out: Any, unused: list[Tensor]) -> Any:
        """Let the backward pass visit what gets no gradient, where a wrapper waits for it."""
        awaited = waits_for_all()
        if awaited is not None:  # None also when a checkpointed forward is computed again
            self.kept_in_graph = awaited
        unused = [tensor for tensor in unused if tensor.requires_grad]
        if not (self.kept_in_graph and unused and torch.is_grad_enabled()):
            return out
        track = self.gate.track() if self.gate.track is not None else None
        if track is not None:
            track()
        return with_first_tensor(out, keep_in_graph(first_tensor(out), unused))


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """Send no gradient to the parameters.

    `requires_grad` is restored after the call, because wrappers and optimisers read it.
    """
    if torch.compiler.is_compiling():  # the compiler cannot trace a change of `requires_grad`
        with _reparametrize_module(module, {n: p.detach() for n, p in module.named_parameters()}):
            yield
        return
    learning = [p for p in module.parameters() if p.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


def _no_op(module: nn.Module, args: Any) -> None:
    """A hook that does nothing (and can be pickled)."""
