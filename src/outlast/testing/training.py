"""Small runs in memory, and the rules that take training to see.

Seeds are trained together, as rows of one table. A seed must be what it is alone, and a seed whose
weights are broken must change no other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outlast.runs.records import EventLine, Line, MetricLine
from outlast.runs.spec import RunSpec, Settings
from outlast.testing.rules import RuleSet, require
from outlast.testing.subjects import Subject
from outlast.train.run_state import RunState
from outlast.train.seeds import SeedState
from outlast.train.step import Stepper
from outlast.train.trainer import Trainer
from outlast.workflow.create import canonical

CPU = torch.device("cpu")
#: a task of few tokens; one with several parts; a model with every pathway
SHORT = "parity(length=4)"
COMPOSITE = "composite(modulus=2, keys=8, queries=1, length=4)"
HYBRID = "lstm > attention(rope, heads=2) @ 16"

RULES = RuleSet[Subject]()
METHOD_RULES = RuleSet[str]()


def small_run(
    *methods: str,
    task: str = "composite(modulus=2, keys=32, queries=2, length=4)",
    model: str,
    seeds: tuple[int, ...] = (0, 1),
    **changed: Any,
) -> RunSpec:
    """A run of seconds without probes; `changed` are settings."""
    settings = Settings(steps=30, batch_size=8, warmup=5, steps_per_block=5, probe_every=0)
    return RunSpec(task, model, methods, seeds, replace(settings, **changed))


class _MemoryTrainer(Trainer):
    """Writes no files: the lines of the metrics are kept in `lines`."""

    def __init__(self, specs: Iterable[RunSpec]) -> None:
        super().__init__([(canonical(spec), Path("nowhere")) for spec in specs], CPU)
        self.lines: list[list[Line]] = [[] for _ in self.runs]

    def _write(self, lines: dict[int, list[Line]]) -> None:
        for index, new in lines.items():
            self.lines[index] += new

    def save(self, runs: Iterable[int]) -> None:
        return


class InMemory:
    """Runs trained together without files: their metrics are in `lines`; `run` is the first."""

    def __init__(self, *specs: RunSpec) -> None:
        self.trainer = _MemoryTrainer(specs)
        self.runs: list[RunState] = self.trainer.runs
        self.run = self.runs[0]
        self.lines = self.trainer.lines

    def block(self) -> None:
        """Train one block."""
        self.trainer.train(blocks=1)

    def steps(self, count: int) -> InMemory:
        """Train until every run has done that many steps, or has ended."""
        while any(run.unfinished and run.step < count for run in self.runs):
            self.block()
        return self

    def losses(self, seed: int, run: int = 0) -> list[list[float | None]]:
        """The losses of a seed by block and part."""
        lines = [line for line in block_lines(self.lines[run]) if line.seed == seed]
        return [list((line.loss or {}).values()) for line in lines]

    def events(self, seed: int, run: int = 0) -> list[tuple[int, str]]:
        """The steps and names of a seed's events."""
        lines = [line for line in events(self.lines[run]) if line.seed == seed]
        return [(line.step, line.event) for line in lines]


def events(lines: Iterable[Line], name: str = "") -> list[EventLine]:
    """The events among some lines, by default of every name."""
    every = [line for line in lines if isinstance(line, EventLine)]
    return [line for line in every if line.event == (name or line.event)]


def block_lines(lines: Iterable[Line]) -> list[MetricLine]:
    """The lines about whole blocks among some lines: those with losses and accuracies."""
    return [x for x in lines if isinstance(x, MetricLine) and x.loss is not None]


# ---- a seed is the same alone ------------------------------------------------------------------

SEEDS, STEPS, BLOCK = (3, 0, 7), 60, 20
#: Adam makes a whole step of a gradient that is nothing but rounding, so the steps are small ones:
#: a weight moves by 6e-3 in all, and the tolerance is half of one step. Seen on x86, one thread: no
#: difference at all; on longer sequences `fire` had up to 1.5e-5
RATE, TOLERANCE = 1e-4, 5e-5


@RULES.rule
def seed_trains_as_it_does_alone(subject: Subject) -> None:
    """After 60 steps among other seeds, a seed has the weights that it has after 60 steps alone.

    Why: Seeds are the sample of a study. If they influence each other, its statistics are void.
    Fix: See the rule that stacked seeds equal each seed alone. Keep nothing outside the weights.
    """
    check_seed_alone(SHORT, f"{subject.line} @ {subject.width}")


@METHOD_RULES.rule
def seed_trains_with_it_as_it_does_alone(line: str) -> None:
    """After 60 steps among other seeds, a seed has the weights that it has after 60 steps alone.

    Why: Each seed has a state of its own and switches on its own.
    Fix: Keep in the state, and not in `self`, what differs from seed to seed.
    """
    check_seed_alone(COMPOSITE, HYBRID, line)


def check_seed_alone(task: str, model: str, *methods: str) -> None:
    """The last of three seeds is, to rounding, the seed alone."""

    def training(seeds: tuple[int, ...]) -> InMemory:
        run = small_run(
            *methods, task=task, model=model, seeds=seeds, steps=STEPS, steps_per_block=BLOCK,
            checkpoint_every=BLOCK, batch_size=4, lr=RATE, warmup=0,
        )  # fmt: skip
        return InMemory(run)

    among, alone = training(SEEDS), training(SEEDS[-1:])
    initial = _table(among)[-1].clone()
    require(torch.equal(_table(alone)[0], initial), "alone it has other weights at the start")
    for one, other in zip(_first_data(among), _first_data(alone), strict=True):
        require(torch.equal(one[:, -1], other[:, 0]), "alone it has other data")
    among.steps(STEPS)
    alone.steps(STEPS)
    require(among.events(SEEDS[-1]) == alone.events(SEEDS[-1]), "alone it has other events")
    torch.testing.assert_close(_table(among)[-1], _table(alone)[0], rtol=0, atol=TOLERANCE)
    weights = among.run.test_weights()
    for name, weight in alone.run.test_weights().items():
        torch.testing.assert_close(weights[name][-1], weight[0], rtol=0, atol=TOLERANCE)
    change = (_table(alone)[0] - initial).abs().max()
    require(change > 50 * TOLERANCE, "it hardly learned, so nothing is shown")


def _table(training: InMemory) -> Tensor:
    return training.trainer.seeds.model.table


def _first_data(training: InMemory) -> tuple[Tensor, ...]:
    _, data = training.run.next_block()
    return data.inputs, data.targets, data.part


# ---- a broken seed changes no other ------------------------------------------------------------

#: by seed, what is put in place of weights, and in every which of them
BREAKS = {
    1: (math.nan, 1), 2: (math.inf, 1), 3: (1e38, 1),
    5: (math.nan, 29), 6: (math.inf, 29), 7: (1e38, 29),
}  # fmt: skip
SOUND = [0, 4, 8]


@RULES.rule
def broken_seed_changes_no_other(subject: Subject) -> None:
    """Seeds with NaN, infinite or huge weights leave the other seeds bit for bit what they are.

    Why: One seed that diverges must not end or change the others of its run.
    Fix: Reduce over no axis of seeds in a vmap rule. Index by no value that a NaN makes invalid.
    """
    for by_length in (False, True):
        check_broken_seeds(f"{subject.line} @ {subject.width}", by_length)


def check_broken_seeds(model: str, by_length: bool) -> None:
    """The sound seeds are the same, whether the other seeds are broken or not."""
    run = canonical(
        small_run(
            task=SHORT, model=model, seeds=tuple(range(9)), by_length=by_length,
            steps=2, steps_per_block=2, batch_size=2, warmup=0,
        )
    )  # fmt: skip
    seeds = SeedState.create([run], CPU)
    plan, data = RunState(run, seeds).next_block()
    stepper = Stepper(seeds, seeds.model.task.parts, bf16=False, by_length=by_length)
    start = seeds.read()

    def results() -> tuple[list[Tensor], Tensor]:
        """State, metrics and logits of a test by the sound seeds, and all losses."""
        metrics = stepper.run(data, plan)
        with torch.no_grad():
            logits = seeds.model.run(data.inputs[0].repeat(1, 1, 3))
        tables = [table[SOUND].clone() for table in seeds.tables()]
        return [*tables, metrics[:, SOUND], logits[SOUND]], metrics[:, :, 0]

    wanted, _ = results()
    seeds.write(start)
    with torch.no_grad():
        for row, (value, every) in BREAKS.items():
            weights = seeds.model.table[row, ::every]
            weights.copy_(torch.full_like(weights, value).copysign(weights))
    actual, losses = results()
    require(not losses[:, [1, 2, 3]].isfinite().all(), "no seed broke, so nothing is shown")
    how = "sorted by length" if by_length else "padded"
    for one, other in zip(actual, wanted, strict=True):
        require(other.isfinite().all(), "a sound seed is not finite")
        require(torch.equal(one, other), f"broken seeds change sound ones, sequences {how}")
