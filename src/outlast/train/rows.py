"""The tables of all seeds that are trained together, and the parts of them that belong together.

A row is one seed of one run. A run's seeds are a part of the tables, and so are those that fit in
memory at once; a part lies in the same memory, so whoever changes it changes the whole. Rows picked
one by one, as are those that still learn, are a copy: fetched before a block, given back after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outlast.errors import TrainingError, bad_value, short_of_memory
from outlast.methods.base import Method
from outlast.registry import methods, tasks
from outlast.train.optimiser import AdamW
from outlast.train.settings import RunSpec
from outlast.train.stack import StackedModel

#: settings that runs trained together must share; every other number is a row's own
SHARED = ("batch", "block", "precision")


@dataclass
class SeedState:
    """Weights, optimiser and averages, a row a seed; `shares` is what enters an average a step."""

    stack: StackedModel
    optimiser: AdamW
    average: Tensor | None
    shares: Tensor

    @classmethod
    def make(cls, runs: Sequence[RunSpec], device: torch.device) -> SeedState:
        """Fresh rows for the seeds of each run in turn; runs too unlike are an error."""
        check_alike(runs)
        each = [(run, decay_of(run), seed) for run in runs for seed in run.seeds]
        try:
            return cls._made(runs[0], each, device)
        except (MemoryError, RuntimeError) as error:
            if not short_of_memory(error):
                raise
            raise TrainingError(
                f"the weights and moments of {len(each)} seeds in one run do not fit into the "
                f"memory of {device}: take fewer seeds, or another device ({error})"
            ) from error

    @classmethod
    def _made(
        cls, like: RunSpec, each: Sequence[tuple[RunSpec, float | None, int]], device: torch.device
    ) -> SeedState:
        stack = StackedModel(like.model, tasks.build(like.task), [s for _, _, s in each], device)
        optimiser = AdamW(
            stack,
            [run.settings.clip for run, _, _ in each],
            [run.settings.weight_decay for run, _, _ in each],
        )
        kept = any(decay is not None for _, decay, _ in each)
        shares = [0.0 if decay is None else 1 - decay for _, decay, _ in each]
        average = torch.zeros_like(stack.table) if kept else None
        return cls(stack, optimiser, average, stack.table.new_tensor(shares))

    def __len__(self) -> int:
        return len(self.stack.seeds)

    def part(self, rows: slice | list[int]) -> SeedState:
        """Some of the rows: a slice in the same memory, a list of them a copy."""
        stack = self.stack.part(rows)
        average = None if self.average is None else self.average[rows]
        return SeedState(stack, self.optimiser.part(stack, rows), average, self.shares[rows])

    def tables(self) -> list[Tensor]:
        """Everything that a step changes, each (rows, ...)."""
        optimiser = self.optimiser
        own = [self.stack.table, optimiser.first, optimiser.second, optimiser.counts]
        return own if self.average is None else [*own, self.average]

    def copy(self) -> list[Tensor]:
        """The tables as they are now."""
        return [table.detach().clone() for table in self.tables()]

    @torch.no_grad()
    def put_back(self, saved: Sequence[Tensor], rows: slice | int = slice(None)) -> None:
        """Make rows again what they were when they were copied."""
        for table, before in zip(self.tables(), saved, strict=True):
            table[rows] = before[rows]

    def _all(self) -> list[Tensor]:
        """Everything that is a row's own: also what a step reads and leaves as it is."""
        return [*self.tables(), self.optimiser.clip, self.optimiser.weight_decay, self.shares]

    def lend(self, rows: Sequence[int]) -> list[Tensor]:
        """Copies of all that some rows have."""
        return [table.detach()[list(rows)] for table in self._all()]

    @torch.no_grad()
    def take(self, lent: Sequence[Tensor], rows: Sequence[int]) -> None:
        """Put what was lent into some rows."""
        for table, own in zip(self._all(), lent, strict=True):
            table[list(rows)] = own

    @torch.no_grad()
    def fetch(self, home: SeedState, rows: list[int]) -> None:
        """Take over rows of other tables, as many as there are here."""
        for table, whole in zip(self.tables(), home.tables(), strict=True):
            table.copy_(whole[rows])

    @torch.no_grad()
    def give_back(self, home: SeedState, rows: list[int]) -> None:
        """Put what was fetched where it came from."""
        for table, whole in zip(self.tables(), home.tables(), strict=True):
            whole[rows] = table


#: of fewer rows none are left out, as little would be saved
FEW = 4


def rows_to_step(rests: Sequence[int], clock: int) -> tuple[int, ...]:
    """The rows to step: all of them, or about half as long as at least half are at rest.

    `rests` is the step from which each rests. Those that do not rest yet at `clock` are all in it,
    and then those that were the last to. It depends on nothing else, so that a run that is resumed
    steps the same rows together as one that was not stopped.
    """
    size, live = len(rests), sum(at > clock for at in rests)
    while size >= FEW and live <= size // 2:
        size //= 2
    return tuple(sorted(sorted(range(len(rests)), key=lambda row: -rests[row])[:size]))


def decay_of(run: RunSpec) -> float | None:
    """The decay of the average that a run's methods want kept, if any."""
    return decay_among([methods.build(m) for m in run.methods])


def decay_among(built: Sequence[Method]) -> float | None:
    """The decay that the last method with one asks for."""
    decays = [m.average for m in built if m.average is not None]
    return decays[-1] if decays else None


def alike(run: RunSpec) -> tuple[object, ...]:
    """What runs must have in common to be trained together: their canonical lines as given."""
    return (run.task, run.model, *(getattr(run.settings, name) for name in SHARED))


def check_alike(runs: Sequence[RunSpec]) -> None:
    """Runs that cannot be trained together are an error that says what differs."""
    for name, *values in zip(("task", "model", *SHARED), *map(alike, runs), strict=True):
        for value in values[1:]:
            if value != values[0]:
                accepted = f"{values[0]}, as in the first of the runs to be trained together"
                raise bad_value(name, value, accepted)
