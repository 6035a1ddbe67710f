"""The plan of a block of steps: what the methods want of each seed, as tables for the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outlast.methods.base import PATHWAYS, Control, Event, Losses, Method, MethodState, Setup
from outlast.mixers.base import Pathway
from outlast.train.settings import Settings


@dataclass(frozen=True)
class Plan:
    """Tables over (steps of the block, seeds, pathways or parts), and one length range a seed."""

    gates: Tensor
    leaks: Tensor
    rates: Tensor
    active: Tensor
    weights: Tensor
    lengths: list[tuple[int, int]]

    def column(self, table: Tensor, pathway: Pathway) -> list[float]:
        """Every value that a pathway takes in this block."""
        values: list[float] = table[:, :, PATHWAYS.index(pathway)].flatten().tolist()
        return values

    def trained(self, row: int, parts: tuple[str, ...]) -> list[int]:
        """The parts that have a weight for a seed anywhere in the block."""
        return [i for i in range(len(parts)) if bool(self.weights[:, row, i].any())]


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
        """The tables for steps `begin` to `end`; lengths are those of the first step."""
        rows = range(len(self.seeds))
        controls = [[self.control(step, row) for row in rows] for step in range(begin, end)]

        def table(value: Any) -> Tensor:
            return torch.tensor([[value(c) for c in line] for line in controls])

        rates = table(lambda c: [c.rate[p] for p in PATHWAYS])
        base = torch.tensor([self.settings.rate(step) for step in range(begin, end)])
        return Plan(
            gates=table(lambda c: [c.gate[p] for p in PATHWAYS]),
            leaks=table(lambda c: [c.leak[p] for p in PATHWAYS]),
            rates=rates * base[:, None, None],
            active=table(lambda c: [float(c.learns(p)) for p in PATHWAYS]),
            weights=table(lambda c: [c.weights[p] for p in self.setup.parts]),
            lengths=[c.lengths for c in controls[0]],
        )

    def observe(self, step: int, row: int, losses: Losses) -> list[tuple[Method, Event]]:
        """Show every method the losses of a seed; returns what happened."""
        return [
            (method, event)
            for method, state in zip(self.methods, self.states[row], strict=True)
            for event in method.observe(step, losses, state)
        ]
