"""The plan of a block of steps: the controls of every step and seed, as tables for the device.

`methods/base.py` has the one list of controls: each field of `Control` that is a dict of numbers,
or one float, becomes a table here, under its own name. A new control is a field there and a use in
`step.py`. Where a seed rests, or its run has fewer steps than others, the numbers of a table mean
nothing: its row is left as it is, whatever it computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.errors import RunFolderError
from outlast.methods.base import (
    FIXABLE,
    INITIAL_STATE,
    PATHWAYS,
    SUBLAYER_CONTROLS,
    Control,
    Event,
    HeldOutLosses,
    Losses,
    Method,
    MethodState,
    Setup,
)
from outlast.mixers.randomness import WINDOW, draw_positions, fold_in, random_bits
from outlast.models import Model
from outlast.registry import tasks
from outlast.runs.spec import RunSpec, Settings
from outlast.streams import stream_seed
from outlast.tasks import Task
from outlast.train.optimiser import learning_rate

Tables = dict[str, Tensor]


@dataclass(frozen=True)
class Plan:
    """What each seed does at each step of a block.

    ================================= ==========================================================
    table (steps, seeds, ...)         holds
    ================================= ==========================================================
    gate, upstream_grad, keep         as the methods set them, (pathways)
    loss_weights (parts)              as the methods set them
    rate (pathways)                   learning rates, after the schedule and the methods
    fixed (parts of weights)          1 where a part of the weights is left as it is
    initial_state                     as the methods set it, (INITIAL_STATE)
    active (pathways)                 0 where the weights of a pathway do not move
    alive                             0 where a seed is left as it is: parked, or its run is over
    keys                              what all randomness in the model depends on
    positions (tokens)                where the tokens stand; empty where they are counted
    window                            how many keys attention sees; 0: all so far
    shuffle (share, block)            as the methods set them; the data of the block are made by it
    mix                               as the methods set it
    ================================= ==========================================================

    `lengths` are the shortest and longest sequence of each seed.
    """

    tables: Tables
    lengths: list[tuple[int, int]]

    @property
    def steps(self) -> int:
        return len(self.tables["alive"])

    @property
    def initial_states(self) -> tuple[str, ...]:
        """The kinds of initial state that any sequence has, other than none."""
        table = self.tables["initial_state"]
        kinds = [INITIAL_STATE.index(kind) for kind in ("passed", "noise")]
        return tuple(INITIAL_STATE[i] for i in kinds if bool(table[..., i].any()))

    def map(self, change: Callable[[Tensor], Tensor]) -> Plan:
        """The same plan with every table changed."""
        return replace(self, tables={n: change(t) for n, t in self.tables.items()})

    def without(self, rows: Sequence[int]) -> Plan:
        """The same plan with some seeds left as they are."""
        alive = self.tables["alive"].clone()
        alive[:, list(rows)] = 0
        return replace(self, tables=_settled(self.tables | {"alive": alive}))

    def of_seeds(self, rows: Sequence[int]) -> Plan:
        """The plan of some seeds."""
        chosen = self.map(lambda table: table[:, list(rows)].contiguous())
        return replace(chosen, lengths=[self.lengths[row] for row in rows])

    @classmethod
    def join(cls, plans: Sequence[Plan]) -> Plan:
        """Several runs' plans side by side; seeds of a shorter plan rest when it is over."""
        if len(plans) == 1:
            return plans[0]
        steps = max(plan.steps for plan in plans)
        tokens = max(plan.tables["positions"].shape[2] for plan in plans)
        tables = [plan._with_positions(tokens) for plan in plans]
        joined = {
            name: torch.cat([pad_steps(each[name], steps) for each in tables], 1)
            for name in tables[0]
        }
        return cls(_settled(joined), [lengths for plan in plans for lengths in plan.lengths])

    def _with_positions(self, tokens: int) -> Tables:
        """The tables, with counted positions for so many tokens if there were none."""
        if self.tables["positions"].shape[2] or not tokens:
            return self.tables
        counted = torch.arange(tokens).expand(*self.tables["alive"].shape, -1)
        return self.tables | {"positions": counted}

    def trained_parts(self, row: int, parts: tuple[str, ...]) -> list[int]:
        """The parts that have a weight for a seed anywhere in the block."""
        return [i for i in range(len(parts)) if bool(self.tables["loss_weights"][:, row, i].any())]


def _settled(tables: Tables) -> Tables:
    """Seeds at rest learn nothing, and do not stand in the way of a gate that others share."""
    alive = tables["alive"][:, :, None] > 0
    settled = tables | {"active": tables["active"] * alive}
    if len(live := tables["alive"].nonzero()):
        step, row = live[0].tolist()
        for name in SUBLAYER_CONTROLS:
            settled[name] = tables[name].where(alive, tables[name][step, row])
    return settled


def pad_steps(table: Tensor, steps: int, value: float = 0) -> Tensor:
    """Lengthen a table whose first axis is the steps of a block."""
    missing = steps - table.shape[0]
    return (
        F.pad(table, (0, 0) * (table.dim() - 1) + (0, missing), value=value) if missing else table
    )


def setup(settings: Settings, task: Task, model: Model) -> Setup:
    """What the methods of a run may know of it."""
    tokens = task.tokens(task.lengths[1])
    present = {sublayer.pathway for sublayer in model.sublayers()}
    pathways = tuple(pathway for pathway in PATHWAYS if pathway in present)
    fixable = {part for sublayer in model.sublayers() for part in sublayer.mixer.fixable()}
    return Setup(
        settings.steps,
        task.parts,
        task.lengths,
        tokens,
        model.ceiling,
        str(model.layout),
        pathways,
        tuple(part for part in FIXABLE if part in fixable),
        task.ceiling,
        any(sublayer.mixer.takes_window for sublayer in model.sublayers()),
        model.mixing_points,
        task.measure == "bits",
        task.answers_are_states,
        _short_name(task),
        _guesses(task),
        settings.batch_size,
    )


def _guesses(task: Task) -> dict[str, float]:
    """The loss of a guess at each part; text is not guessed evenly, so it has none."""
    if task.measure == "bits":
        return {}
    levels = {part: task.chance_level(part) for part in task.parts}
    return {part: -math.log(level) for part, level in levels.items() if 0 < level < 1}


def _short_name(task: Task) -> str:
    """The line of a task without its defaults; a task that was not built from one has its name."""
    spec = getattr(task, "spec", None)
    return task.name if spec is None else str(tasks.canonical(spec))


def _is_like(value: object, first: object) -> bool:
    """Whether a value may have come of the one that a method began with; None may become any."""
    if isinstance(first, (int, float)) and not isinstance(first, bool):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return first is None or isinstance(value, type(first))


class MethodStates:
    """The methods of a run and, for each seed, their states."""

    def __init__(self, methods: Sequence[Method], setup: Setup, run: RunSpec) -> None:
        self.methods, self.setup, self.settings, self.seeds = (
            methods,
            setup,
            run.settings,
            run.seeds,
        )
        self.states: list[list[MethodState]] = [
            [method.begin(setup) for method in methods] for _ in run.seeds
        ]

    def check(self, states: Sequence[Sequence[MethodState]], step: int, path: Path) -> None:
        """Raise if a method cannot go on at a step from the states that were saved."""
        for row, several in enumerate(states):
            for index, (state, method) in enumerate(zip(several, self.methods, strict=True)):
                field = f"methods[{row}][{index}]"
                for name, first in self.states[0][index].items():
                    if name not in state:
                        raise RunFolderError(f"cannot read {path}: {field} has no {name}")
                    if not _is_like(state[name], first):
                        shown, kind = f"{state[name]!r:.80}", type(first).__name__
                        raise RunFolderError(
                            f"cannot read {path}: {field}.{name}={shown}: expected {kind}"
                        )
                try:
                    method.control(step, deepcopy(state), Control.plain(self.setup))
                except (TypeError, ValueError, LookupError, ArithmeticError) as error:
                    raise RunFolderError(f"cannot read {path}: {field}: {error}") from None

    def control(self, step: int, row: int) -> Control:
        """What a step of a seed does, after every method has edited it in turn."""
        control = Control.plain(self.setup)
        for method, state in zip(self.methods, self.states[row], strict=True):
            method.control(step, state, control)
        return control

    def plan(self, begin: int, end: int) -> Plan:
        """The plan of steps `begin` to `end`; lengths and spans are those of the first step."""
        rows = range(len(self.seeds))
        controls = [[self.control(step, row) for row in rows] for step in range(begin, end)]

        def table(values: Callable[[Control], Any]) -> Tensor:
            return torch.tensor([[values(control) for control in line] for line in controls])

        def numbers(control: Control, name: str) -> Any:
            value = getattr(control, name)
            return list(value.values()) if isinstance(value, dict) else value

        plain = Control.plain(self.setup)
        names = [f.name for f in fields(plain) if isinstance(getattr(plain, f.name), dict | float)]
        tables = {name: table(partial(numbers, name=name)) for name in names}
        base = torch.tensor([learning_rate(self.settings, step) for step in range(begin, end)])
        tables["rate"] = tables["rate"] * base[:, None, None]
        tables["active"] = table(lambda control: [float(control.learns(p)) for p in PATHWAYS])
        tables["alive"] = torch.ones(end - begin, len(self.seeds))
        tables["keys"] = torch.tensor(
            [[stream_seed("chance", s, step) for s in self.seeds] for step in range(begin, end)]
        )
        tables["positions"] = self._positions(tables["keys"], [c.span for c in controls[0]])
        tables["window"] = self._windows(tables["keys"], controls)
        return Plan(tables, [c.lengths for c in controls[0]])

    def _positions(self, keys: Tensor, spans: Sequence[int]) -> Tensor:
        """Positions for the longest sequence there can be: they do not depend on the data."""
        if not any(spans):
            return keys.new_zeros(*keys.shape, 0)
        tokens = self.setup.tokens
        drawn = [draw_positions(keys[:, row], tokens, span) for row, span in enumerate(spans)]
        return torch.stack(drawn, 1)

    def _windows(self, keys: Tensor, controls: Sequence[Sequence[Control]]) -> Tensor:
        """A window for each step and seed (steps, seeds), each of its sizes equally likely."""
        window = torch.zeros_like(keys)
        if not any(control.windows for line in controls for control in line):
            return window
        bits = random_bits(fold_in(keys, WINDOW), (1,))[..., 0]
        for step, row in ((s, r) for s in range(len(keys)) for r in range(len(self.seeds))):
            if sizes := controls[step][row].windows:
                window[step, row] = sizes[int(bits[step, row]) % len(sizes)]
        return window

    def observe(self, step: int, row: int, losses: Losses) -> list[tuple[Method, Event]]:
        """Show every method the losses of a seed; returns what happened."""
        return [
            (method, event)
            for method, state in zip(self.methods, self.states[row], strict=True)
            for event in method.observe(step, losses, state)
        ]

    def held_out(self, rows: Sequence[int]) -> set[float]:
        """Multiples of the training length of which methods of some seeds want held-out losses."""
        pairs = [pair for row in rows for pair in zip(self.methods, self.states[row], strict=True)]
        return {multiple for method, state in pairs for multiple in method.held_out(state)}

    def observe_held_out(self, step: int, row: int, losses: HeldOutLosses) -> None:
        """Show the methods of a seed the held-out losses that they want."""
        for method, state in zip(self.methods, self.states[row], strict=True):
            if multiples := method.held_out(state):
                method.observe_held_out(step, {m: losses[m] for m in multiples}, state)
