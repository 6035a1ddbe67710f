"""Checkpoints: one safetensors file, the plain state as JSON in its header.

One file means one rename: a checkpoint is there whole or not at all. Every tensor has the seeds as
its first axis, so some seeds can be read without the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from outlast.errors import RunFolderError
from outlast.runs.folder import CHECKPOINT, write_atomically
from outlast.runs.records import FORMAT, check_format, checked
from outlast.runs.spec import RunSpec

#: names of tensors: each parameter's weights behind a prefix, the average of all weights as one
WEIGHTS, AVERAGE = "weights.", "average"


@dataclass(frozen=True)
class TrainingState:
    """Everything plain that changes while a run trains; lists have an entry for each seed."""

    step: int
    #: steps that the average of the weights has seen
    averaged: list[int]
    #: the state of each method
    methods: list[list[dict[str, Any]]]
    #: the last probe: joint accuracy by multiple of the training length
    probe: list[dict[str, float]]
    #: the step whose weights a parked seed has
    parked: list[int | None]
    #: the step at which a seed succeeded
    succeeded: list[int | None]
    #: good probes in a row
    streaks: list[int]
    #: what a checkpoint must share with its run: task, model, methods and seeds
    run: dict[str, Any] = field(default_factory=dict)

    def of_seeds(self, rows: Sequence[int], seeds: Sequence[int]) -> TrainingState:
        """The state of some seeds, which stand in these rows."""
        names = ("averaged", "methods", "probe", "parked", "succeeded", "streaks")
        chosen: dict[str, Any] = {n: [getattr(self, n)[row] for row in rows] for n in names}
        return replace(self, **chosen, run=self.run | {"seeds": list(seeds)})

    def check_run(self, run: RunSpec, path: Path) -> None:
        """Raise if the checkpoint belongs to another run."""
        identity = run.identity
        for name, saved in self.run.items():
            if saved != identity.get(name):
                both = f"its {name} is {saved}, this run's is {identity.get(name)}"
                raise RunFolderError(f"{path} is of another run: {both}")


def save_checkpoint(folder: Path, tensors: Mapping[str, Tensor], state: TrainingState) -> None:
    """Write the checkpoint of a folder atomically."""
    plain = {n: t.detach().contiguous().cpu() for n, t in tensors.items()}
    header = {"format": "pt", "outlast": json.dumps({"format": FORMAT, **asdict(state)})}

    def write(path: Path) -> None:
        try:
            save_file(plain, path, header)
        except SafetensorError as error:  # a full disk, among others
            raise OSError(str(error)) from error

    write_atomically(folder / CHECKPOINT, write)


def load_checkpoint(
    folder: Path,
    wanted: Callable[[str], bool] = lambda name: True,
    rows: Sequence[int] | None = None,
) -> tuple[dict[str, Tensor], TrainingState]:
    """Tensors and state; a damaged, cut or foreign file is a clear error.

    `wanted` says which tensors are read. With `rows` those of some seeds are read alone.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        raise RunFolderError(f"{folder} has no {CHECKPOINT}: nothing was saved there yet")
    try:
        with safe_open(path, framework="pt") as file:
            state = _read_state(file.metadata(), path)
            tensors = {n: _read_rows(file, n, rows) for n in file.keys() if wanted(n)}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise RunFolderError(f"{path} is damaged or cut short: {error}") from None
    return tensors, state


def load_state(folder: Path) -> TrainingState:
    """The state alone, without reading a tensor."""
    return load_checkpoint(folder, wanted=lambda name: False)[1]


def _read_rows(file: Any, name: str, rows: Sequence[int] | None) -> Tensor:
    if rows is None:
        tensor: Tensor = file.get_tensor(name)
        return tensor
    table = file.get_slice(name)
    return torch.cat([table[row : row + 1] for row in rows])


def _read_state(metadata: Mapping[str, str] | None, path: Path) -> TrainingState:
    header = (metadata or {}).get("outlast")
    if header is None:
        raise RunFolderError(f"{path} is a safetensors file, but not a checkpoint of outlast")
    values = json.loads(header)
    if not isinstance(values, dict):
        raise ValueError("its header is not a JSON object")
    check_format(values, path)
    averaged = values.get("averaged")
    if isinstance(averaged, list):  # older ones were saved before seeds could be parked or succeed
        seeds = len(averaged)
        values.setdefault("parked", [None] * seeds)
        values.setdefault("succeeded", [None] * seeds)
        values.setdefault("streaks", [0] * seeds)
        if isinstance(probe := values.get("probe"), dict):  # their probe is the mean over the seeds
            values["probe"] = [dict(probe) for _ in range(seeds)]
    return checked(values, TrainingState, path)


def restore(target: Tensor, tensors: Mapping[str, Tensor], name: str, path: Path) -> None:
    """Copy a saved tensor into place, if it is there and fits."""
    saved = tensors.get(name)
    if saved is None or saved.shape != target.shape or saved.dtype != target.dtype:
        content = "nothing" if saved is None else f"{tuple(saved.shape)} {saved.dtype}"
        raise RunFolderError(
            f"{path} does not fit this run: {name} should be {tuple(target.shape)} {target.dtype}, "
            f"found {content}"
        )
    with torch.no_grad():
        target.copy_(saved)
