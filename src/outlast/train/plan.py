"""The plan of a block of steps: what the methods want of each seed, as tables for the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.methods.base import PATHWAYS, Control, Event, Losses, Method, MethodState, Setup
from outlast.mixers.base import Pathway
from outlast.mixers.randomness import draw_positions
from outlast.models import Model
from outlast.streams import stream_seed
from outlast.tasks import Task
from outlast.train.settings import Settings


@dataclass(frozen=True)
class Plan:
    """Tables over (steps of the block, seeds, pathways or parts), and one length range a seed.

    `alive` (steps, seeds) is 0 where a seed is left as it is: it is parked, or its run has ended.
    `keys` (steps, seeds) are what all chance in the model hangs on. `positions` (steps, seeds,
    tokens) is where the tokens stand; it is empty where they are counted.
    """

    gates: Tensor
    upstream_grads: Tensor
    rates: Tensor
    active: Tensor
    weights: Tensor
    alive: Tensor
    keys: Tensor
    positions: Tensor
    lengths: list[tuple[int, int]]

    def without(self, rows: Sequence[int]) -> Plan:
        """The same with some seeds left as they are."""
        alive = self.alive.clone()
        alive[:, list(rows)] = 0
        return self._settled(replace(self, alive=alive))

    def rows(self, rows: Sequence[int]) -> Plan:
        """The plan of some seeds."""
        own = {n: getattr(self, n)[:, list(rows)].contiguous() for n in TABLES}
        return Plan(**own, lengths=[self.lengths[row] for row in rows])

    @classmethod
    def join(cls, plans: Sequence[Plan]) -> Plan:
        """Several runs' plans side by side; a shorter one's seeds rest when it is over."""
        if len(plans) == 1:
            return plans[0]
        steps = max(len(p.alive) for p in plans)
        tokens = max(p.positions.shape[2] for p in plans)
        plans = [p.counted(tokens) for p in plans]

        def table(name: str) -> Tensor:
            return torch.cat([pad_steps(getattr(p, name), steps) for p in plans], 1)

        lengths = [pair for p in plans for pair in p.lengths]
        return cls._settled(cls(**{n: table(n) for n in TABLES}, lengths=lengths))

    def counted(self, tokens: int) -> Plan:
        """The same with positions for so many tokens, if there were none."""
        if self.positions.shape[2] or not tokens:
            return self
        return replace(self, positions=torch.arange(tokens).expand(*self.alive.shape, -1))

    def column(self, table: Tensor, pathway: Pathway) -> list[float]:
        """Every value that a pathway takes in this block."""
        values: list[float] = table[:, :, PATHWAYS.index(pathway)].flatten().tolist()
        return values

    def trained(self, row: int, parts: tuple[str, ...]) -> list[int]:
        """The parts that have a weight for a seed anywhere in the block."""
        return [i for i in range(len(parts)) if bool(self.weights[:, row, i].any())]

    @staticmethod
    def _settled(plan: Plan) -> Plan:
        """Seeds at rest learn nothing, and do not stand in the way of a gate others share."""
        own, live = plan.alive[:, :, None] > 0, plan.alive.nonzero()
        gates, upstream_grads = plan.gates, plan.upstream_grads
        if len(live):
            step, row = live[0].tolist()
            gates, upstream_grads = (
                gates.where(own, gates[step, row]),
                upstream_grads.where(own, upstream_grads[step, row]),
            )
        return replace(plan, gates=gates, upstream_grads=upstream_grads, active=plan.active * own)


#: the tables of a plan, by name
TABLES = ("gates", "upstream_grads", "rates", "active", "weights", "alive", "keys", "positions")


def pad_steps(table: Tensor, steps: int, value: float = 0) -> Tensor:
    """Lengthen a table whose first axis is the steps of a block."""
    missing = steps - table.shape[0]
    return (
        F.pad(table, (0, 0) * (table.dim() - 1) + (0, missing), value=value) if missing else table
    )


def setup(settings: Settings, task: Task, model: Model) -> Setup:
    """What the methods of a run may know of it."""
    tokens = task.tokens(task.lengths[1])
    return Setup(settings.steps, task.parts, task.lengths, tokens, model.ceiling)


class Conductor:
    """Holds the methods and, for each seed, their states."""

    def __init__(
        self, methods: list[Method], setup: Setup, settings: Settings, seeds: tuple[int, ...]
    ) -> None:
        self.methods, self.setup, self.settings, self.seeds = methods, setup, settings, seeds
        self.states: list[list[MethodState]] = [[m.begin(setup) for m in methods] for _ in seeds]

    def control(self, step: int, row: int) -> Control:
        """What a step of a seed does, after every method has had its say in turn."""
        control = Control.plain(self.setup)
        for method, state in zip(self.methods, self.states[row], strict=True):
            method.control(step, state, control)
        return control

    def plan(self, begin: int, end: int) -> Plan:
        """The tables for steps `begin` to `end`; lengths and spans are those of the first step."""
        rows = range(len(self.seeds))
        controls = [[self.control(step, row) for row in rows] for step in range(begin, end)]

        def table(value: Any) -> Tensor:
            return torch.tensor([[value(c) for c in line] for line in controls])

        rates = table(lambda c: [c.rate[p] for p in PATHWAYS])
        base = torch.tensor([self.settings.rate(step) for step in range(begin, end)])
        keys = torch.tensor(
            [[stream_seed("chance", s, step) for s in self.seeds] for step in range(begin, end)]
        )
        return Plan(
            gates=table(lambda c: [c.gate[p] for p in PATHWAYS]),
            upstream_grads=table(lambda c: [c.upstream_grad[p] for p in PATHWAYS]),
            rates=rates * base[:, None, None],
            active=table(lambda c: [float(c.learns(p)) for p in PATHWAYS]),
            weights=table(lambda c: [c.weights[p] for p in self.setup.parts]),
            alive=torch.ones(end - begin, len(self.seeds)),
            keys=keys,
            positions=self._positions(keys, [c.span for c in controls[0]]),
            lengths=[c.lengths for c in controls[0]],
        )

    def _positions(self, keys: Tensor, spans: Sequence[int]) -> Tensor:
        """Positions for the longest sequence there can be: they do not hang on the data."""
        tokens = self.setup.tokens
        if not any(spans):
            return keys.new_zeros(*keys.shape, 0)
        rows = [draw_positions(keys[:, row], tokens, span) for row, span in enumerate(spans)]
        return torch.stack(rows, 1)

    def observe(self, step: int, row: int, losses: Losses) -> list[tuple[Method, Event]]:
        """Show every method the losses of a seed; returns what happened."""
        return [
            (method, event)
            for method, state in zip(self.methods, self.states[row], strict=True)
            for event in method.observe(step, losses, state)
        ]
