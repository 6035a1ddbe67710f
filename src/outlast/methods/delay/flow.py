"""Where attention joins the residual stream, seen in one small forward pass.

A gate scales what attention adds only if it stands right before that sum. In most models this is
the output of the attention module. In OLMo-Hybrid and Gemma 2 a norm comes between the two, and in
Zamba a norm, an MLP and a projection. A norm undoes any scale before it. So the gate belongs after
the last of these modules. They are the *tail* of attention.

The pass watches the tensors that carry attention's output and nothing else. Each operation on such
a tensor is one of three:

- a factor, a cast, a view or a dropout: its result carries the output on,
- the sum with another activation: the residual stream is reached,
- anything else: if it happens in a module that gets nothing but the output, this module is part of
  the tail, and its own output is watched from then on. Otherwise no gate could scale the
  contribution, and the reason is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from outlast.methods.delay.skipping import first_tensor, tensors

SUMS = {"aten::add", "aten::add_", "aten::sub"}
SCALES = {
    "aten::mul", "aten::mul_", "aten::div", "aten::neg", "aten::_to_copy", "aten::clone",
    "aten::native_dropout", "aten::detach",
}  # fmt: skip


class Flow(NamedTuple):
    """How attention's output reaches the residual stream."""

    #: modules between attention and the sum, by name
    tail: dict[str, nn.Module]
    #: names of the modules whose output is added: the last of a tail, or attention itself
    added: set[str]
    #: why a gate cannot scale the contribution; None if it can
    obstacle: str | None = None


def watch(model: nn.Module, attention: dict[str, nn.Module], run: Callable[[], Any]) -> Flow:
    """Run `run`, which calls the model, and see where the output of `attention` is added."""
    names = {id(module): name for name, module in model.named_modules()}
    with torch.no_grad(), _in_eval_mode(model), torch.random.fork_rng(_gpus(model)):
        watcher = _Watcher(attention)
        with watcher.hooked(model), watcher:
            run()
    called = {trace.attention for trace in watcher.traces}
    unused = [name for name, module in attention.items() if module not in called]
    obstacles = [trace.obstacle or "" for trace in watcher.traces if not trace.joined]
    chains = [[trace.attention, *trace.tail] for trace in watcher.traces]
    tail_calls = Counter(module for chain in chains for module in chain[1:])
    for module, calls in tail_calls.items():
        if calls != watcher.calls[module]:
            obstacles.append(f"{names[id(module)]} also handles other activations")
    last = {chain[-1] for chain in chains}
    if any(module in last for chain in chains for module in chain[:-1]):
        obstacles.append("one module is followed by different modules in different layers")
    if unused:
        obstacles.append(f"{unused[0]} was not called")
    tail = {names[id(module)]: module for module in tail_calls}
    added = {names[id(module)] for module in last}
    return Flow(tail, added, obstacles[0] if obstacles else None)


class _Trace:
    """One call of one attention module, until its output is added to something."""

    def __init__(self, attention: nn.Module, name: str, output: Tensor) -> None:
        self.attention, self.name = attention, name
        self.tail: list[nn.Module] = []
        self.joined = False
        self.obstacle: str | None = f"the output of {name} is added to nothing"
        #: the call inside which the output is transformed; nothing is watched until it ends
        self.stage: _Call | None = None
        self.carriers = [output]

    @property
    def watching(self) -> bool:
        return not self.joined and self.stage is None and bool(self.carriers)

    def carries(self, tensor: object) -> bool:
        """Whether a tensor shares memory with the output."""
        return isinstance(tensor, Tensor) and any(
            _memory(tensor) == _memory(carrier) for carrier in self.carriers
        )


class _Call:
    """A module that runs now, and the traces from which alone its inputs come."""

    def __init__(self, module: nn.Module, inputs: list[Tensor], traces: Iterable[_Trace]) -> None:
        self.module = module
        self.traces = [t for t in traces if inputs and all(t.carries(x) for x in inputs)]


class _Watcher(TorchDispatchMode):
    def __init__(self, attention: dict[str, nn.Module]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.attention = {module: name for name, module in attention.items()}
        self.traces: list[_Trace] = []
        self.running: list[_Call] = []
        self.calls: Counter[nn.Module] = Counter()

    @contextmanager
    def hooked(self, model: nn.Module) -> Iterator[None]:
        hooks = []
        for module in model.modules():
            hooks.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
            hooks.append(module.register_forward_hook(self._leave))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        inputs = [x for x in tensors((args, kwargs)) if x.is_floating_point()]
        self.running.append(_Call(module, inputs, [t for t in self.traces if t.watching]))
        self.calls[module] += 1

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        call = self.running.pop()
        for trace in self.traces:
            if trace.stage is call:
                trace.stage, trace.carriers = None, [first_tensor(output)]
                trace.tail.append(module)
        if module in self.attention:
            name = self.attention[module]
            self.traces.append(_Trace(module, name, first_tensor(output)))

    def __torch_dispatch__(  # type: ignore[override]
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        operation = func._schema.name
        for trace in self.traces:
            if trace.watching and any(trace.carries(x) for x in tensors((args, kwargs or {}))):
                self._follow(trace, operation, args, kwargs or {}, output)
        return output

    def _follow(self, trace: _Trace, operation: str, args: Any, kwargs: Any, output: Any) -> None:
        results = list(tensors(output))
        others = [x for x in tensors((args, kwargs)) if not trace.carries(x)]
        carrying = sum(trace.carries(x) for x in args)
        if operation in SUMS and any(x.dim() > 1 for x in others):
            trace.joined, trace.obstacle = True, None
        elif operation in SUMS and isinstance(args[1], Tensor):
            trace.carriers += results  # a bias, or two parts of the output
        elif operation in SCALES and carrying == 1 and _scales(operation, trace.carries(args[0])):
            trace.carriers += results
        elif results and all(trace.carries(x) for x in results) and not operation.endswith("_"):
            return  # a view
        else:
            self._transform(trace, operation)

    def _transform(self, trace: _Trace, operation: str) -> None:
        trace.stage = next((call for call in self.running if trace in call.traces), None)
        if trace.stage is None:
            trace.carriers = []
            trace.obstacle = (
                f"{operation} comes between the output of {trace.name} and the residual stream"
            )


def _scales(operation: str, carried_first: bool) -> bool:
    """Whether the result is proportional to the carrier: in x / y only if x is the carrier."""
    return carried_first or operation in ("aten::mul", "aten::mul_")


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def _gpus(model: nn.Module) -> list[int]:
    return sorted({p.device.index for p in model.parameters() if p.is_cuda})
