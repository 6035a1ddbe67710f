"""`delay`, and the handle that it returns."""

from __future__ import annotations

import copy
import logging
import math
import weakref
from typing import Any, Literal, get_args

from torch import Tensor, nn

from outlast.arguments import as_whole, check_flag, shown
from outlast.errors import SpecError, bad_value
from outlast.methods.base import Control, Setup
from outlast.methods.delay.arguments import (
    FOREVER,
    read_loss,
    read_saved,
    read_step,
    read_switch,
)
from outlast.methods.delay.discovery import find_attention, listed
from outlast.methods.delay.distributed import mean_over_ranks
from outlast.methods.delay.flow import Flow
from outlast.methods.delay.gradients import GradientGuard
from outlast.methods.delay.marks import Mark, held_back
from outlast.methods.delay.probing import find_flow
from outlast.methods.delay.selection import Where, choose
from outlast.methods.delay.sublayer import Gate, HeldSublayer
from outlast.registry import methods
from outlast.specs import Spec

Mode = Literal["skip", "freeze", "ramp", "detach"]
log = logging.getLogger(__name__)


def delay(
    model: nn.Module,
    where: Where | None = None,
    *,
    mode: Mode = "skip",
    switch: str | int | float | Spec = "below(0.01)",
    steps: int | None = None,
    latest: int | float | None = None,
    ramp: int = 500,
    recurrence: bool = True,
    example: Any = None,
) -> Delay:
    """Hold back attention in `model` until `switch`, in your own training loop.

    Without `where` the attention modules are found: those of `transformers` models, of Outlast's
    own models, and `torch.nn.MultiheadAttention`. The handle shows them.

    Call `step(loss)` of the returned handle after each optimiser step. Until the switch the
    weights of the held-back sublayers do not change, except in mode ``detach``: any optimiser of
    `torch.optim` leaves them alone, weight decay and momentum included. You may build the
    optimiser before or after this call.

    With `torch.distributed` all ranks must call `delay` and `step`. They switch at the same step.
    You may wrap the model in DistributedDataParallel before or after this call, with or without
    ``find_unused_parameters``. The option ``static_graph`` is refused, because the graph changes.

    A deep copy of the model, such as an average of its weights, switches together with the model.
    A pickled copy stays as it was; call `delay` on it to train it further.

    A model of `transformers` that is saved before attention is fully on has a field
    ``delayed_attention`` in its config, for `load_state_dict` of a new handle. Once attention is
    on, nothing is left in the model.

    Args:
        model: any module that contains the sublayers.
        where: the sublayers to hold back: a pattern of their full names (``"*.attn"``), their
            type, a function of name and module, or a list of these. A pattern that matches more
            than attention is refused. Types and functions may choose any sublayer. None: all
            attention.
        mode: ``skip``: they add nothing until the switch. ``ramp``: the same, and then their
            output grows over `ramp` steps. ``freeze``: they run, and their weights are fixed.
            ``detach``: they run and learn, but send no gradient to what comes before them.
        switch: a step, a share of `steps`, or ``"below(0.01)"`` or ``"plateau"``: a trigger on
            the smoothed loss given to `step`. Losses that are not finite are left out.
        steps: the number of training steps, if `switch` or `latest` is a share.
        latest: the step, or the share of `steps`, by which the switch happens in any case.
        ramp: the number of steps over which mode ``ramp`` opens the gate.
        recurrence: False if attention that is found without `where` may be delayed in a model
            without a recurrence, or with one of a kind that is not known.
        example: inputs of the model: a tensor, a tuple of arguments or a dict of them. The modes
            ``skip`` and ``ramp`` use it to see what stands between attention and the residual
            stream, such as a norm. The gate comes after it. Models of `transformers` need no
            example. Other models without one are gated right after attention.

    Returns:
        The handle: `step`, `switched`, `modules`, `gated`, `state_dict`, `load_state_dict`,
        `remove`.
    """
    if not isinstance(model, nn.Module):
        raise bad_value("model", shown(model), "a torch.nn.Module")
    if not isinstance(mode, str) or mode not in get_args(Mode):
        raise bad_value("mode", shown(mode), " | ".join(get_args(Mode)))
    steps = None if steps is None else as_whole("steps", steps, 1, FOREVER)
    spec = Spec(
        "dat",
        (),
        (
            ("mode", mode),
            ("switch", read_switch(switch, steps)),
            ("phase1", "full"),
            ("rewarm", 0),
            ("ramp", as_whole("ramp", ramp, 0, FOREVER)),
            ("latest", FOREVER if latest is None else read_step("latest", latest, steps)),
        ),
    )
    check_flag("recurrence", recurrence)
    skips = mode in ("skip", "ramp")
    if where is None:
        chosen = find_attention(model, needs_recurrence=recurrence and skips)
    else:
        chosen = choose(model, where)
    method = methods.build(spec)  # a bad argument is an error before the model is touched
    _release_copies(model, chosen)
    flow = (
        find_flow(model, chosen, example, needed=mode == "ramp" and where is None)
        if skips
        else None
    )
    if flow is not None:
        _release_copies(model, flow.tail)
    saved_before = held_back(model)
    if saved_before is not None:
        log.warning("%s; without it phase 1 begins anew", saved_before)
    return Delay(model, chosen, method, flow)


class Delay:
    """The handle that `delay` returns: `step` it, save it, remove it."""

    def __init__(
        self,
        model: nn.Module,
        chosen: dict[str, nn.Module],
        method: Any,
        flow: Flow | None = None,
    ) -> None:
        gate = Gate()
        self._model, self._method = model, method
        tail, added = ({}, set(chosen)) if flow is None else (flow.tail, flow.added)
        self._held = {
            name: HeldSublayer(module, gate, scales=name in added)
            for name, module in {**chosen, **tail}.items()
        }
        self._attention = list(chosen)
        self._mark = Mark(model, mode=method.mode, ramp=method.ramp, modules=self._attention)
        self._setup = Setup(FOREVER, ("loss",), (1, 1))
        self._state = method.begin(self._setup)
        self._steps = 0
        self._connect(gate)

    def step(self, loss: float | Tensor) -> bool:
        """Count one optimiser step with this loss. True at the step that switches.

        With `torch.distributed` a trigger sees the mean of the losses of all ranks.
        """
        value = read_loss(loss)
        before = self.switched
        if before is None and isinstance(self._method.switch, Spec):
            value = mean_over_ranks(value)
        self._steps += 1
        self._observe(value)
        self._apply()
        return before is None and self.switched is not None

    @property
    def switched(self) -> int | None:
        """The step at which attention was let in, or None."""
        return self._state["switched"]  # type: ignore[no-any-return]

    @property
    def modules(self) -> list[str]:
        """The names of the sublayers that this handle holds back; empty after `remove`."""
        return [name for name in self._attention if name in self._held]

    @property
    def gated(self) -> list[str]:
        """The names of the modules whose output the gate scales.

        They are the sublayers themselves, or what stands between them and the residual stream.
        """
        return [name for name, held in self._held.items() if held.scales]

    def __repr__(self) -> str:
        method = self._method
        if not self._held:
            phase = "removed"
        elif self.switched is None:
            phase = f"held back, step {self._steps}"
        else:
            phase = f"switched at step {self.switched}"
        modules = listed(f"{n} ({type(self._held[n].module).__name__})" for n in self.modules)
        after = [name for name in self.gated if name not in self._attention]
        gate = f", gate after [{listed(after)}]" if after else ""
        return f"Delay(mode={method.mode}, switch={method.switch}, {phase}: [{modules}]{gate})"

    def state_dict(self) -> dict[str, Any]:
        """The state as plain JSON, for `load_state_dict` on resume."""
        return {"steps": self._steps, "state": copy.deepcopy(self._state)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self._steps, self._state = read_saved(saved, self._method.begin(self._setup))
        self._apply()

    def remove(self, keep_mark: bool = False) -> None:
        """Restore the model. Copies of it are open from now on.

        With `keep_mark` its config still says that attention was held back, if it was: for a
        trainer that saves the model after training.
        """
        for held in self._held.values():
            held.remove()
            held.gate.open()
        self._held = {}
        self._guard.stop()
        if not keep_mark:
            self._mark.erase()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "_guard"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A handle that was copied together with its model controls that copy alone."""
        vars(self).update(state)
        self._connect(Gate())

    def _connect(self, gate: Gate) -> None:
        modules = [held.module for held in self._held.values()]
        shared = self._method.mode != "freeze"
        self._guard = GradientGuard(self._model, modules, keep_shared=shared)
        gate.handle, gate.track = weakref.ref(self), weakref.WeakMethod(self._guard.track)
        for held in self._held.values():
            held.gate = gate
        self._apply()

    def _observe(self, loss: float) -> None:
        """Show the method a loss. One that is not finite leaves the smoothed loss as it is."""
        smoothed = self._state["loss"]
        known = math.isfinite(loss) or smoothed is not None
        value = loss if math.isfinite(loss) else math.inf if smoothed is None else smoothed
        self._method.observe(self._steps, {"loss": [value]}, self._state)
        if not known:
            self._state.update(loss=None, trigger={})

    def _apply(self) -> None:
        if not self._held:
            return
        control = Control.plain(self._setup)
        self._method.control(self._steps, self._state, control)
        output = control.gate["attention"]
        for gate in {id(held.gate): held.gate for held in self._held.values()}.values():
            gate.set(output, control.upstream_grad["attention"], control.rate["attention"] > 0)
        if self.switched is not None and output == 1:
            self._mark.erase()
        else:
            self._mark.write(self.state_dict())
        if self.switched is None:
            self._guard.start(drops_held=not control.learns("attention"))
        else:
            self._guard.stop()


def _release_copies(model: nn.Module, chosen: dict[str, nn.Module]) -> None:
    """Release modules that were copied while they were held back.

    A module whose own handle is alive is refused.
    """
    gates = set()
    for name, module in chosen.items():
        held = HeldSublayer.of(module)
        if held is None:
            continue
        handle = held.gate.handle() if held.gate.handle is not None else None
        if handle is not None and any(held is other for other in handle._held.values()):
            raise SpecError(f"{name}: is delayed already by {handle!r}; call its remove() first")
        gates.add(held.gate)
    for module in model.modules():
        held = HeldSublayer.of(module)
        if held is not None and held.gate in gates:
            held.remove()
