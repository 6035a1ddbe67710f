"""Seeds as an axis: S copies of a plain module, and everything that training changes of them.

All weights lie in one table (S, P), one row for each seed, columns sorted by pathway. So the
optimiser, clipping, averages and checkpoints are a few operations on a table. The module itself
stays a single-seed `nn.Module`; `torch.func` runs it over the rows.

A row is one seed of one run. The seeds of a run are some of the rows, and so are those that fit in
memory at once. A slice of rows lies in the same memory, so a change of it is a change of the whole.
Rows picked one by one are a copy.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from outlast.errors import TrainingError, bad_value, short_of_memory
from outlast.methods.base import FIXABLE, PATHWAYS, SUBLAYER_CONTROLS, Control, Method
from outlast.mixers.base import Mixer, Pathway
from outlast.models import Model, build_model
from outlast.models.mixing import Mix
from outlast.models.model import gate_mode
from outlast.registry import methods, tasks
from outlast.runs.spec import RunSpec
from outlast.streams import stream_seed
from outlast.tasks import Task
from outlast.train.initial_state import initial_state
from outlast.train.optimiser import AdamW
from outlast.train.predictor import CarriedState, Predictor

Rows = slice | Sequence[int]
#: settings that runs trained together must share; every other number is a row's own
SHARED = ("batch_size", "steps_per_block", "precision")


class StackedModel:
    """The weights of S seeds of one model, and how to run them together."""

    def __init__(
        self,
        layout: str,
        task: Task,
        seeds: Sequence[int],
        device: torch.device,
        initialise: bool = True,
    ) -> None:
        self.layout, self.task, self.seeds = layout, task, tuple(seeds)
        self.model = self._fresh(self.seeds[0], 0).to(device)
        for sublayer in self.model.sublayers():
            sublayer.lends_bias = True  # the model is ours alone
        parameters = dict(self.model.named_parameters())
        pathways = self.model.pathways()
        # odd sizes go last in their pathway, so that the large matrices stay aligned
        self.names = sorted(
            parameters, key=lambda n: (PATHWAYS.index(pathways[n]), parameters[n].numel() % 16 != 0)
        )
        self.slices: dict[str, slice] = {}
        self.columns: dict[Pathway, slice] = {}
        end = 0
        for name in self.names:
            begin, end = end, end + parameters[name].numel()
            self.slices[name] = slice(begin, end)
            first = self.columns.get(pathways[name], slice(begin, end))
            self.columns[pathways[name]] = slice(first.start, end)
        self.shapes = {n: parameters[n].shape for n in self.names}
        self.width = -(-end // 16) * 16
        self.table = torch.zeros(len(self.seeds), self.width, device=device)
        for row in range(len(self.seeds)) if initialise else ():
            self.reset(row, 0)
        self.leaves = {n: v.requires_grad_() for n, v in self.named(self.table).items()}
        # matrices are decayed, vectors (norms, biases) are not
        self.decays = torch.zeros(self.width, device=device)
        for name, columns in self.slices.items():
            self.decays[columns] = float(len(self.shapes[name]) > 1)
        self.fixable = self._fixable()

    def _fixable(self) -> dict[str, list[slice]]:
        """The columns of each part of the weights that can be fixed."""
        columns: dict[str, list[slice]] = {part: [] for part in FIXABLE}
        mixers = [(n, m) for n, m in self.model.named_modules() if isinstance(m, Mixer)]
        for name, mixer in mixers:
            for part, (weight, rows) in mixer.fixable().items():
                begin, shape = (
                    self.slices[f"{name}.{weight}"].start,
                    self.shapes[f"{name}.{weight}"],
                )
                size = shape[1:].numel()
                columns[part].append(slice(begin + size * rows.start, begin + size * rows.stop))
        return columns

    @contextmanager
    def fixed(self, gradient: Tensor, parts: Tensor) -> Iterator[None]:
        """In an update inside, some parts of the weights stay exactly as they are.

        `parts` (S, FIXABLE) is 1 where a part is fixed. Its gradient becomes 0, and so it counts
        for no norm; whatever else the update does to it is undone.
        """
        held = []
        with torch.no_grad():
            for part, rows in zip(FIXABLE, parts.bool().unbind(1), strict=True):
                for columns in self.fixable[part]:
                    gradient[:, columns].masked_fill_(rows[:, None], 0.0)
                    held.append((columns, rows[:, None], self.table[:, columns].clone()))
        yield
        with torch.no_grad():
            for columns, rows, before in held:
                weights = self.table[:, columns]
                weights.copy_(torch.where(rows, before, weights))

    def _fresh(self, seed: int, attempt: int) -> Model:
        return build_model(
            self.layout,
            self.task.vocabulary,
            self.task.classes,
            seed=stream_seed("init", seed, attempt),
        )

    def reset(self, row: int, attempt: int) -> None:
        """Give one seed fresh weights, those of its `attempt`-th start."""
        fresh = dict(self._fresh(self.seeds[row], attempt).named_parameters())
        with torch.no_grad():
            for name, columns in self.slices.items():
                self.table[row, columns] = fresh[name].flatten().to(self.table.device)

    def part(self, rows: Rows) -> StackedModel:
        """Some of the seeds as a model of their own: a slice in the same memory, a list a copy."""
        part, index = copy.copy(self), _index(rows)
        chosen = range(len(self.seeds))[index] if isinstance(index, slice) else index
        part.seeds, part.table = tuple(self.seeds[row] for row in chosen), self.table[index]
        part.leaves = {n: v.requires_grad_() for n, v in part.named(part.table).items()}
        return part

    def named(self, table: Tensor) -> dict[str, Tensor]:
        """Views of a table under the parameters' names, each (S, *shape)."""
        detached = table.detach()
        seeds = len(table)
        return {n: detached[:, c].view(seeds, *self.shapes[n]) for n, c in self.slices.items()}

    def corrected_average(self, average: Tensor, counts: Sequence[int], decay: float) -> Tensor:
        """The average of the weights, corrected for its start; the weights where it has none."""
        seen = torch.tensor(counts, dtype=torch.float64)
        correction = (1 - decay ** seen.clamp_min(1)).to(average)
        begun = (seen > 0).to(average.device)[:, None]
        return torch.where(begun, average / correction[:, None], self.table)

    def gradient(self, loss: Tensor) -> Tensor:
        """The gradient of a loss as a table; weights that took no part have 0."""
        gradients = torch.autograd.grad(
            loss, [self.leaves[n] for n in self.names], materialize_grads=True
        )
        columns = [g.reshape(len(self.seeds), -1) for g in gradients]
        spare = self.width - sum(c.shape[1] for c in columns)
        return torch.cat([*columns, columns[0].new_zeros(len(self.seeds), spare)], 1)

    def set_modes(self, controls: Mapping[str, Tensor] | None = None) -> None:
        """Tell the module which gates are all closed or all open, so that it can save the work.

        `controls` (..., pathways) are all the values to come; without them all gates are open.
        """
        for sublayer in self.model.sublayers():
            column = PATHWAYS.index(sublayer.pathway)
            for name in SUBLAYER_CONTROLS:
                values = (
                    [1.0] if controls is None else controls[name][..., column].flatten().tolist()
                )
                setattr(sublayer, f"{name}_mode", gate_mode(values))

    def run(
        self,
        inputs: Tensor,
        weights: dict[str, Tensor] | None = None,
        controls: Mapping[str, Tensor] | None = None,
        positions: Tensor | None = None,
        keys: Tensor | None = None,
        initial: dict[str, Tensor] | None = None,
        carried: CarriedState | None = None,
        windows: Tensor | None = None,
        mix: Mix | None = None,
    ) -> Tensor:
        """Logits (S, batch, tokens, outputs) of inputs (S or 1, batch, tokens).

        `controls` are tables (S, pathways), all 1 by default; they matter only where `set_modes`
        saw seeds that differ or a value between 0 and 1. `positions` (S or 1, tokens or more) is
        where the tokens stand, if they are not counted. `keys` (S) decide dropout, if there is any.
        `initial` says how recurrent layers begin, if not with nothing (`initial_state.py`).
        `carried` is the state before these tokens, and then that after them. `windows` (S) are how
        many keys attention sees, if not all. `mix` has the seeds first too.
        """
        weights = self.leaves if weights is None else weights
        ones = self.table.new_ones(len(self.seeds), len(PATHWAYS))
        tables = {n: ones if controls is None else controls[n] for n in SUBLAYER_CONTROLS}
        sublayers = {n: m.pathway for n, m in self.model.named_modules() if hasattr(m, "gate_mode")}

        def run_one(
            parameters: dict[str, Tensor],
            tokens: Tensor,
            tables: dict[str, Tensor],
            positions: Tensor | None,
            key: Tensor | None,
            window: Tensor | None,
            mix: Mix | None,
            initial: dict[str, Tensor] | None,
            before: list[Tensor],
        ) -> tuple[Tensor, list[Tensor]]:
            buffers = {
                f"{name}.{control}": table[PATHWAYS.index(pathway)]
                for name, pathway in sublayers.items()
                for control, table in tables.items()
            }
            context: dict[str, Any] = {"positions": positions, "key": key}
            context |= {"window": window, "mix": mix}
            if carried is not None:
                context |= {"state": carried.of_one(before), "total": carried.total}
            if initial is not None and key is not None:
                with torch.no_grad():
                    others, places = (initial["tokens"],), {"positions": positions}
                    _, last = functional_call(self.model, (parameters, buffers), others, places)
                    context["state"] = initial_state(self.model, last, initial, key)
            logits, after = functional_call(self.model, (parameters, buffers), (tokens,), context)
            return logits, [] if carried is None else carried.split(after)

        if positions is not None:
            positions = positions[:, : inputs.shape[-1]]
        tokens, token_axis = _shared(inputs)
        places, place_axis = _shared(positions)
        optional = [None if table is None else 0 for table in (keys, windows, mix, initial)]
        axes = (0, token_axis, 0, place_axis, *optional, 0)
        before = [] if carried is None else carried.tensors
        run = vmap(run_one, in_dims=axes)
        logits: Tensor
        logits, after = run(weights, tokens, tables, places, keys, windows, mix, initial, before)
        if carried is not None:
            carried.tensors = after
        return logits

    def predictor(self, controls: Sequence[Control], weights: dict[str, Tensor]) -> Predictor:
        """Tokens (batch, tokens) to logits (S, batch, tokens, outputs), as a test wants them.

        `controls` are those of each seed. All of the gradient is of no interest here.
        """
        gates = torch.tensor([[c.gate[p] for p in PATHWAYS] for c in controls])
        tables = {name: torch.ones_like(gates) for name in SUBLAYER_CONTROLS} | {"gate": gates}
        self.set_modes(tables)
        tables = {n: table.to(self.table.device) for n, table in tables.items()}
        run = partial(self.run, weights=weights, controls=tables)
        return Predictor(run, [c.span for c in controls], self.model.chunks_to)


def _shared(table: Any) -> tuple[Any, int | None]:
    """A table of all seeds and the axis of the seeds in it; one row is for all of them."""
    if table is None or table.shape[0] > 1:
        return table, None if table is None else 0
    return table[0], None


@dataclass
class SeedState:
    """Weights, optimiser and averages, one row for each seed.

    `average_rate` is the share of the weights that enters the average in a step.
    """

    model: StackedModel
    optimiser: AdamW
    average: Tensor | None
    average_rate: Tensor

    @classmethod
    def create(cls, runs: Sequence[RunSpec], device: torch.device) -> SeedState:
        """Fresh rows for the seeds of each run in turn; runs too unlike are an error."""
        check_trainable_together(runs)
        each = [(run.settings, average_decay(run), seed) for run in runs for seed in run.seeds]
        try:
            task, seeds = tasks.build(runs[0].task), [seed for _, _, seed in each]
            model = StackedModel(runs[0].model, task, seeds, device)
            norms = [settings.max_grad_norm for settings, _, _ in each]
            optimiser = AdamW(model, norms, [settings.weight_decay for settings, _, _ in each])
            decays = [decay for _, decay, _ in each]
            rates = [0.0 if decay is None else 1 - decay for decay in decays]
            averaged = any(decay is not None for decay in decays)
            average = torch.zeros_like(model.table) if averaged else None
            return cls(model, optimiser, average, model.table.new_tensor(rates))
        except (MemoryError, RuntimeError) as error:
            if not short_of_memory(error):
                raise
            raise TrainingError(
                f"the weights and moments of {len(each)} seeds in one run do not fit into the "
                f"memory of {device}: take fewer seeds, or another device ({error})"
            ) from error

    def __len__(self) -> int:
        return len(self.model.seeds)

    def part(self, rows: Rows) -> SeedState:
        """Some of the rows: a slice in the same memory, a list of them a copy."""
        model, index = self.model.part(rows), _index(rows)
        average = None if self.average is None else self.average[index]
        optimiser = self.optimiser.part(model, index)
        return SeedState(model, optimiser, average, self.average_rate[index])

    def tables(self) -> list[Tensor]:
        """Everything that a step changes, each (rows, ...)."""
        optimiser = self.optimiser
        changed = [self.model.table, optimiser.first, optimiser.second, optimiser.counts]
        return changed if self.average is None else [*changed, self.average]

    def _all_tables(self) -> list[Tensor]:
        """Everything that belongs to a row: also what a step reads and leaves as it is."""
        optimiser = self.optimiser
        constant = [optimiser.max_grad_norm, optimiser.weight_decay, self.average_rate]
        return [*self.tables(), *constant]

    def read(self, rows: Rows = slice(None)) -> list[Tensor]:
        """Copies of all that some rows have."""
        index = _index(rows)
        picked = [table.detach()[index] for table in self._all_tables()]
        return [table.clone() for table in picked] if isinstance(index, slice) else picked

    @torch.no_grad()
    def write(self, saved: Sequence[Tensor], rows: Rows = slice(None)) -> None:
        """Put what was read into some rows."""
        for table, values in zip(self._all_tables(), saved, strict=True):
            table[_index(rows)] = values


def _index(rows: Rows) -> slice | list[int]:
    """Rows as torch takes them: a slice is a view, a list a copy."""
    return rows if isinstance(rows, slice) else list(rows)


#: with fewer rows none are left out, as little would be saved
FEW = 4


def rows_to_step(rests: Sequence[int], clock: int) -> tuple[int, ...]:
    """The rows to step: all of them, or about half as long as at least half are at rest.

    `rests` is the step from which each rests. Rows that do not rest yet at `clock` are all among
    them, and then those that were the last to rest. It depends on nothing else, so that a resumed
    run steps the same rows together as a run that was not stopped.
    """
    size, live = len(rests), sum(at > clock for at in rests)
    while size >= FEW and live <= size // 2:
        size //= 2
    return tuple(sorted(sorted(range(len(rests)), key=lambda row: -rests[row])[:size]))


def average_decay(run: RunSpec) -> float | None:
    """The decay of the average that a run's methods want, if any."""
    return decay_among([methods.build(method) for method in run.methods])


def decay_among(built: Sequence[Method]) -> float | None:
    """The decay that the last method with one asks for."""
    decays = [method.average for method in built if method.average is not None]
    return decays[-1] if decays else None


def shared_by_pack(run: RunSpec) -> tuple[Any, ...]:
    """What runs must have in common to be trained together: their canonical specs as given."""
    return (run.task, run.model, *(getattr(run.settings, name) for name in SHARED))


def check_trainable_together(runs: Sequence[RunSpec]) -> None:
    """Runs that cannot be trained together are an error that says what differs."""
    for name, *values in zip(("task", "model", *SHARED), *map(shared_by_pack, runs), strict=True):
        for value in values[1:]:
            if value != values[0]:
                accepted = f"{values[0]}, as in the first of the runs to be trained together"
                raise bad_value(name, value, accepted)
