"""Seeds as an axis: S copies of a plain module, kept as one table of numbers.

All weights lie in one table (S, P), a row a seed, columns sorted by pathway, so that the
optimiser, clipping, averaging and checkpoints are a few operations on a table. The module itself
stays a single-seed `nn.Module`; `torch.func` runs it over the rows.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from outlast.methods.base import PATHWAYS
from outlast.mixers.base import Pathway
from outlast.models import Model, build_model
from outlast.models.model import gate_mode
from outlast.streams import stream_seed
from outlast.tasks import Task


class StackedModel:
    """The weights of S seeds of one model, and how to run them together."""

    def __init__(self, layout: str, task: Task, seeds: Sequence[int], device: torch.device) -> None:
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
        for row in range(len(self.seeds)):
            self.reset(row, 0)
        self.leaves = {n: v.requires_grad_() for n, v in self.named(self.table).items()}
        # matrices are decayed, vectors (norms, biases) are not
        self.decays = torch.zeros(self.width, device=device)
        for name, columns in self.slices.items():
            self.decays[columns] = float(len(self.shapes[name]) > 1)

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

    def part(self, rows: slice | list[int]) -> StackedModel:
        """Some of the seeds as a stack of their own: a slice in the same memory, a list a copy."""
        own = copy.copy(self)
        chosen = range(len(self.seeds))[rows] if isinstance(rows, slice) else rows
        own.seeds, own.table = tuple(self.seeds[row] for row in chosen), self.table[rows]
        own.leaves = {n: v.requires_grad_() for n, v in own.named(own.table).items()}
        return own

    def named(self, table: Tensor) -> dict[str, Tensor]:
        """Views of a table under the parameters' names, each (S, *shape)."""
        detached = table.detach()
        seeds = len(table)
        return {n: detached[:, c].view(seeds, *self.shapes[n]) for n, c in self.slices.items()}

    def gradient(self, loss: Tensor) -> Tensor:
        """The gradient of a loss as a table; weights that took no part have 0."""
        found = torch.autograd.grad(
            loss, [self.leaves[n] for n in self.names], materialize_grads=True
        )
        columns = [g.reshape(len(self.seeds), -1) for g in found]
        spare = self.width - sum(c.shape[1] for c in columns)
        return torch.cat([*columns, columns[0].new_zeros(len(self.seeds), spare)], 1)

    def set_controls(
        self,
        gates: Mapping[Pathway, Sequence[float]],
        upstream_grads: Mapping[Pathway, Sequence[float]],
    ) -> None:
        """Tell the module which gates are all closed or all open, so that it can save the work."""
        for sublayer in self.model.sublayers():
            sublayer.gate_mode = gate_mode(list(gates[sublayer.pathway]))
            sublayer.upstream_mode = gate_mode(list(upstream_grads[sublayer.pathway]))

    def run(
        self,
        inputs: Tensor,
        weights: dict[str, Tensor] | None = None,
        gates: Tensor | None = None,
        upstream_grads: Tensor | None = None,
        positions: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Logits (S, batch, tokens, outputs) of inputs (S or 1, batch, tokens).

        `gates` and `upstream_grads` are (S, pathways); they matter only where `set_controls` found
        seeds that differ or a value between 0 and 1. `positions` (S or 1, tokens or more)
        is where the tokens stand, if they are not counted; `keys` (S) decide dropout, if there is
        any.
        """
        weights = self.leaves if weights is None else weights
        ones = self.table.new_ones(len(self.seeds), len(PATHWAYS))
        gates, upstream_grads = (
            ones if gates is None else gates,
            ones if upstream_grads is None else upstream_grads,
        )
        names = {n: m.pathway for n, m in self.model.named_modules() if hasattr(m, "gate_mode")}

        def one(
            own: dict[str, Tensor],
            tokens: Tensor,
            gate: Tensor,
            upstream_grad: Tensor,
            places: Tensor | None,
            key: Tensor | None,
        ) -> Tensor:
            buffers = {}
            for name, pathway in names.items():
                column = PATHWAYS.index(pathway)
                buffers[f"{name}.gate"] = gate[column]
                buffers[f"{name}.upstream_grad"] = upstream_grad[column]
            told = {"positions": places, "key": key}
            logits, _ = functional_call(self.model, (own, buffers), (tokens,), told)
            return logits

        places = None if positions is None else positions[:, : inputs.shape[-1]]
        each: list[tuple[Any, int | None]] = [_shared(inputs), (gates, 0), (upstream_grads, 0)]
        each += [_shared(places), (keys, None if keys is None else 0)]
        values, axes = zip(*each, strict=True)
        found: Tensor = vmap(one, in_dims=(0, *axes))(weights, *values)
        return found


def _shared(table: Tensor | None) -> tuple[Tensor | None, int | None]:
    """A table of all seeds and the axis of the seeds in it; one row is for all of them."""
    if table is None or table.shape[0] > 1:
        return table, None if table is None else 0
    return table[0], None
