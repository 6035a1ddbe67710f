"""Gradient attribution over the training of a run: every kept checkpoint, all seeds at once.

At each checkpoint the methods' controls of that step apply. So in the first phase of `dat` gates
are closed and parts of the loss are off, and after the switch they are as they are trained. The
data are fresh sequences for each seed, of the lengths that are trained at that step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from outlast.analysis.gradients import (
    BATCHES,
    Pass,
    recurrent_weights,
    split_gradient,
    tabulate,
)
from outlast.arguments import as_whole
from outlast.errors import bad_value
from outlast.kernels.loss import part_losses
from outlast.machine import free_memory
from outlast.methods.base import PATHWAYS, SUBLAYER_CONTROLS, MethodState
from outlast.mixers.randomness import fixed_positions
from outlast.models import build_model
from outlast.registry import tasks
from outlast.runs.analyses import Row
from outlast.runs.kept import kept_steps, seeds_at
from outlast.runs.records import read_run
from outlast.runs.spec import seed_words
from outlast.specs import parse_layout
from outlast.tasks import IGNORE, Batch
from outlast.train.data import sample_block
from outlast.workflow.load import TrainedRun, open_run

#: the share of free memory to use; numbers that a sublayer keeps of a token, by its width
USABLE, NUMBERS = 0.25, 24
ATTENTION = PATHWAYS.index("attention")


def run_gradients(
    folder: Path,
    device: torch.device | str = "cpu",
    seeds: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
    toward: Path | None = None,
    batch_size: int | None = None,
    batches: int = BATCHES,
) -> list[Row]:
    """The tables of all checkpoints of a run, with seed, step and phase; the folder stays as it is.

    A phase is 1 before a method's switch and 2 after it, and None where no method has one. The
    column `attempt` says how often a method had started the seed anew, from other weights. Cosines
    to the final weights are None where these belong to another start than the checkpoint.

    Args:
        folder: A run folder. Checkpoints along the way are there with `keep_checkpoints`.
        device: Where gradients are computed.
        seeds: By default all of the run's.
        steps: By default every step whose weights were kept, and the last one.
        toward: A run of the same model and seeds whose last weights are the final ones, such as
            the run with `dat` for the run without. A seed starts both from the same weights, unless
            a method started it anew (``otherwise=retry``). By default the run itself.
        batch_size: Sequences in a batch; by default as in training.
        batches: The gradient is the mean over so many batches.
    """
    run, device = read_run(folder).spec, torch.device(device)
    batches = as_whole("batches", batches, 1)
    chosen = run.seeds if seeds is None else tuple(seeds)
    if not chosen or not set(chosen) <= set(run.seeds):
        raise bad_value(
            "seeds", list(chosen), f"some of those of {folder}: {seed_words(run.seeds)}"
        )
    size = run.settings.batch_size if batch_size is None else as_whole("batch_size", batch_size, 1)
    final = _final_weights(toward or folder, folder, chosen, device)
    at_once = _seeds_at_once(folder, device, size)
    rows: list[Row] = []
    for step in kept_steps(folder) if steps is None else steps:
        present = [seed for seed in chosen if seed in seeds_at(folder, step, run)]
        for first in range(0, len(present), at_once):
            several = present[first : first + at_once]
            trained = open_run(folder, device, several, step, averaged=False)
            rows += _at_step(trained, final.of([chosen.index(s) for s in several]), size, batches)
    return rows


def _seeds_at_once(folder: Path, device: torch.device, batch_size: int) -> int:
    """How many seeds fit into a part of the memory that is free: a guess on the safe side."""
    run = read_run(folder).spec
    task = tasks.build(run.task)
    layout, tokens = parse_layout(run.model), task.tokens(task.lengths[1])
    sublayers = build_model(run.model, task.vocabulary, task.classes, seed=0).sublayers()
    heads = max(getattr(sublayer.mixer, "heads", 1) for sublayer in sublayers)
    row = NUMBERS * (layout.width or 1) * len(sublayers) + heads * tokens * len(sublayers)
    each = 4 * batch_size * tokens * (row + task.classes)
    return max(1, int(USABLE * free_memory(device) / each))


class Final(NamedTuple):
    """The final weights of some seeds, (seeds, ...) by name, and the start they belong to."""

    weights: Mapping[str, Tensor]
    attempts: Sequence[int]

    def of(self, rows: Sequence[int]) -> Final:
        """Those of some of the seeds, by number."""
        weights = {name: weight[list(rows)] for name, weight in self.weights.items()}
        return Final(weights, [self.attempts[row] for row in rows])


def _final_weights(toward: Path, folder: Path, seeds: Sequence[int], device: torch.device) -> Final:
    run, other = read_run(folder).spec, read_run(toward).spec
    if (other.model, other.task) != (run.model, run.task) or not set(seeds) <= set(other.seeds):
        accepted = f"a run of the model, the task and the seeds of {folder}"
        raise bad_value("toward", toward, accepted)
    trained = open_run(toward, device, seeds, averaged=False)
    attempts = [_attempt(states) for states in trained.state.methods]
    return Final(trained.model.named(trained.model.table), attempts)


def _at_step(trained: TrainedRun, final: Final, batch_size: int, batches: int) -> list[Row]:
    """The rows of all seeds at one checkpoint."""
    model, task, controls = trained.model, trained.model.task, trained.controls
    names = recurrent_weights(model.model)
    weights = {n: model.leaves[n] for several in names.values() for n in several}
    data = sample_block(
        task,
        trained.run.seeds,
        [control.lengths for control in controls],
        trained.state.step,
        (batches, batch_size),
        model.table.device,
        by_length=trained.run.settings.by_length,
    )
    mix = torch.tensor([[c.loss_weights[part] for part in task.parts] for c in controls])
    attempts = [_attempt(states) for states in trained.state.methods]
    toward = {n: final.weights[n] - weight.detach() for n, weight in weights.items()}
    for row, (now, then) in enumerate(zip(attempts, final.attempts, strict=True)):
        if now != then:
            for way in toward.values():
                way[row] = 0  # no way leads there
    tables = tabulate(
        split_gradient(_passes(trained, data), weights), names, task.parts, mix, toward
    )
    rows: list[Row] = []
    for number, (seed, table) in enumerate(zip(trained.run.seeds, tables, strict=True)):
        phase = _phase(trained.state.methods[number])
        about: Row = {"seed": seed, "step": trained.state.step, "phase": phase}
        rows += [about | {"attempt": attempts[number]} | row for row in table]
    return rows


def _passes(trained: TrainedRun, data: Batch) -> Iterator[Pass]:
    """For each batch of data (batches, S, batch, tokens), its losses under the seeds' controls."""
    model, controls = trained.model, trained.controls
    by_name = {
        name: torch.tensor([[getattr(c, name)[p] for p in PATHWAYS] for c in controls])
        for name in SUBLAYER_CONTROLS
    }
    positions = None
    if any(control.span for control in controls):
        tokens, device = data.inputs.shape[-1], model.table.device
        positions = torch.stack([fixed_positions(tokens, c.span, device) for c in controls])

    def losses(batch: Batch, upstream: bool) -> Tensor:
        tables = dict(by_name)
        if not upstream:
            tables["upstream_grad"] = tables["upstream_grad"].clone()
            tables["upstream_grad"][:, ATTENTION] = 0.0
        model.set_modes(tables)
        tables = {name: table.to(model.table.device) for name, table in tables.items()}
        logits = model.run(batch.inputs, controls=tables, positions=positions)
        return part_losses(logits, batch.targets, batch.part, len(model.task.parts), IGNORE)[0]

    for number in range(len(data.inputs)):
        batch = data.map(lambda page, number=number: page[number])  # type: ignore[misc]
        yield lambda upstream, batch=batch: losses(batch, upstream)  # type: ignore[misc]


def _phase(states: Sequence[MethodState]) -> int | None:
    """The phase of a seed by the methods that have a switch; the first of them decides."""
    switches = [state["switched"] for state in states if "switched" in state]
    return None if not switches else 1 if switches[0] is None else 2


def _attempt(states: Sequence[MethodState]) -> int:
    """How often methods had started a seed anew."""
    return sum(state.get("attempt", 0) for state in states)
