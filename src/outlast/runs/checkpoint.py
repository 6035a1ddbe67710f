"""Checkpoints: one safetensors file, the plain state as JSON in its header.

One file means one rename: a checkpoint is there whole or not at all. Every tensor has the seeds as
its first axis, so some seeds can be read without the others. So there is a checksum for each row of
each tensor, and one for all of the header. The header also names the run: a checkpoint of other
seeds or settings is refused. Older checkpoints have no checksums, and name less of their run.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from outlast.errors import RunFolderError, shortened
from outlast.runs.folder import CHECKPOINT, RESULTS, has_file, require_regular, write_atomically
from outlast.runs.reading import FORMAT, check_format, checked, parse_json
from outlast.runs.spec import RunSpec

#: names of tensors: each parameter's weights behind a prefix, the average of all weights as one
WEIGHTS, AVERAGE = "weights.", "average"
#: entries of the header: the state, the checksums of rows, and the checksum of both
STATE, ROWS, CHECKSUM = "outlast", "rows", "checksum"
#: fields of the state with an entry for each seed
BY_SEED = ("averaged", "methods", "probe", "parked", "succeeded", "streaks")
#: words that are summed side by side; a prime, so that blocks of a disk that change places show
COLUMNS = 1021


@dataclass(frozen=True)
class TrainingState:
    """Everything plain that changes while a run trains; lists have an entry for each seed."""

    step: int
    #: steps that the average of the weights has seen
    averaged: list[int]
    #: the state of each method
    methods: list[list[dict[str, Any]]]
    #: the last probe: joint accuracy or bits per byte, by multiple of the training length
    probe: list[dict[str, float]]
    #: the step whose weights a parked seed has
    parked: list[int | None]
    #: the step at which a seed succeeded
    succeeded: list[int | None]
    #: good probes in a row
    streaks: list[int]
    #: what a checkpoint must share with its run: task, model, methods, seeds and settings
    run: dict[str, Any] = field(default_factory=dict)

    def is_at_end(self, steps: int) -> bool:
        """Whether the last of `steps` is done, or no seed is left to train."""
        seeds = zip(self.parked, self.succeeded, strict=True)
        return self.step >= steps or all(seed != (None, None) for seed in seeds)

    def of_seeds(self, rows: Sequence[int], seeds: Sequence[int]) -> TrainingState:
        """The state of some seeds, which stand in these rows."""
        chosen: dict[str, Any] = {n: [getattr(self, n)[row] for row in rows] for n in BY_SEED}
        return replace(self, **chosen, run=self.run | {"seeds": list(seeds)})

    def check_run(self, run: RunSpec, path: Path) -> None:
        """Raise if the checkpoint belongs to another run."""
        saved, expected = _flat(self.run), _flat(run.identity)
        for name, value in saved.items():
            if value != expected.get(name):
                mine = shortened(expected.get(name))
                both = f"its {name} is {shortened(value)}, this run's is {mine}"
                raise RunFolderError(f"{path} is of another run: {both}")
        if len(self.averaged) != len(run.seeds):
            both = f"it has {len(self.averaged)} seeds, this run has {len(run.seeds)}"
            raise RunFolderError(f"{path} is of another run: {both}")
        for states in self.methods:
            if len(states) != len(run.methods):
                both = f"it has {len(states)} methods, this run has {len(run.methods)}"
                raise RunFolderError(f"{path} is of another run: {both}")


def _flat(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What a run is, each setting by its own name."""
    settings = identity.get("settings")
    if not isinstance(settings, dict):
        return dict(identity)
    return {**identity, **settings, "settings": None}


def save_checkpoint(folder: Path, tensors: Mapping[str, Tensor], state: TrainingState) -> None:
    """Write the checkpoint of a folder atomically."""
    write_checkpoint(folder / CHECKPOINT, tensors, state)


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], state: TrainingState) -> None:
    """Write tensors and state as one file, atomically."""
    plain = {n: t.detach().contiguous().cpu() for n, t in tensors.items()}
    written = json.dumps({"format": FORMAT, **asdict(state)})
    rows = json.dumps({name: row_checksums(tensor) for name, tensor in plain.items()})
    header = {"format": "pt", STATE: written, ROWS: rows, CHECKSUM: _text_checksum(written, rows)}

    def write(temporary: Path) -> None:
        try:
            save_file(plain, temporary, header)
        except SafetensorError as error:  # a full disk, among others
            raise OSError(str(error)) from error

    write_atomically(path, write)


def require_checkpoint(folder: Path) -> None:
    """Refuse a folder without a checkpoint. A run that was tested has lost it."""
    if not has_file(folder, CHECKPOINT):
        reason = "nothing was saved there yet"
        if has_file(folder, RESULTS):
            reason = f"the file is missing, as the run was tested ({RESULTS})"
        raise RunFolderError(f"{folder} has no {CHECKPOINT}: {reason}")


def load_checkpoint(
    folder: Path,
    wanted: Callable[[str], bool] = lambda name: True,
    rows: Sequence[int] | None = None,
    run: RunSpec | None = None,
) -> tuple[dict[str, Tensor], TrainingState]:
    """Tensors and state of the last checkpoint of a folder: see `read_checkpoint`."""
    require_checkpoint(folder)
    return read_checkpoint(folder / CHECKPOINT, wanted, rows, run)


def read_checkpoint(
    path: Path,
    wanted: Callable[[str], bool] = lambda name: True,
    rows: Sequence[int] | None = None,
    run: RunSpec | None = None,
) -> tuple[dict[str, Tensor], TrainingState]:
    """Tensors and state; a damaged, cut or foreign file is a clear error.

    `wanted` says which tensors are read. With `rows` those of some seeds are read alone. `run` is
    the run that the checkpoint must belong to; without it any is read.
    """
    try:
        require_regular(path)
        with safe_open(path, framework="pt") as file:
            names, header = list(file.keys()), file.metadata() or {}
            if STATE not in header:
                message = "is a safetensors file, but not a checkpoint of outlast"
                raise RunFolderError(f"{path} {message}")
            checksums, state = _read_checksums(header, names), _read_state(header[STATE], path)
            if run is not None:
                state.check_run(run, path)
            tensors = {n: _read_rows(file, n, rows) for n in names if wanted(n)}
        seeds = len(state.averaged if rows is None else rows)
        for name, tensor in tensors.items():
            if tensor.shape[:1] != (seeds,):
                raise ValueError(f"{name} is {tuple(tensor.shape)}, expected {seeds} rows")
        if checksums is not None:
            _check_rows(tensors, checksums, rows)
    except (SafetensorError, OSError, ValueError) as error:
        raise RunFolderError(
            f"{path} is damaged or cut short: {shortened(error)}; put a copy of it in its place, "
            f"or train anew with --overwrite"
        ) from None
    return tensors, state


def load_state(folder: Path, run: RunSpec | None = None) -> TrainingState:
    """The state alone, without reading a tensor."""
    return load_checkpoint(folder, wanted=lambda name: False, run=run)[1]


def _read_rows(file: Any, name: str, rows: Sequence[int] | None) -> Tensor:
    if rows is None:
        tensor: Tensor = file.get_tensor(name)
        return tensor
    table = file.get_slice(name)
    return torch.cat([table[row : row + 1] for row in rows])


def _read_state(text: str, path: Path) -> TrainingState:
    values = parse_json(text)
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
    state = checked(values, TrainingState, path)
    _check_state(state, path)
    return state


def _check_state(state: TrainingState, path: Path) -> None:
    """Raise if fields do not fit each other."""

    def require(holds: bool, name: str, accepted: str) -> None:
        if not holds:
            raise RunFolderError(f"cannot read {path}: {name}: expected {accepted}")

    seeds = len(state.averaged)
    for name in BY_SEED:
        require(len(getattr(state, name)) == seeds, name, f"{seeds} entries, one for each seed")
    require(state.step >= 0, f"step={state.step}", "a whole number >= 0")
    for name in ("averaged", "streaks"):
        require(min(getattr(state, name), default=0) >= 0, name, "whole numbers >= 0")
    for name in ("parked", "succeeded"):
        steps = [step for step in getattr(state, name) if step is not None]
        require(all(0 <= step <= state.step for step in steps), name, f"steps up to {state.step}")
    probed = {tuple(probe) for probe in state.probe if probe}
    require(len(probed) <= 1, "probe", "the same multiples for each seed")


# ---- checksums -----------------------------------------------------------------------------------


def row_checksums(tensor: Tensor) -> list[int]:
    """A checksum of each row of a tensor: of the sums of its columns, and of what is left over.

    Summing in columns is several times as fast as a CRC of all bytes, and shows every bit that is
    flipped.
    """
    length = math.prod(tensor.shape[1:]) * tensor.element_size()
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy().reshape(len(tensor), length)
    count = length // (4 * COLUMNS)
    whole = 4 * COLUMNS * count
    words = data[:, :whole].view(np.uint32).reshape(len(tensor), count, COLUMNS)
    sums = np.add.reduce(words, axis=1, dtype=np.uint32)
    tails = np.ascontiguousarray(data[:, whole:])
    return [zlib.crc32(tail, zlib.crc32(row)) for row, tail in zip(sums, tails, strict=True)]


def _check_rows(
    tensors: Mapping[str, Tensor],
    checksums: Mapping[str, Sequence[int]],
    rows: Sequence[int] | None,
) -> None:
    """Raise if rows are not what was saved."""
    for name, tensor in tensors.items():
        saved = checksums[name]
        if row_checksums(tensor) != (saved if rows is None else [saved[row] for row in rows]):
            raise ValueError(f"{name} is not as it was saved")


def _text_checksum(*texts: str) -> str:
    return f"{zlib.crc32(json.dumps(texts).encode()):08x}"


def _read_checksums(header: Mapping[str, str], names: Sequence[str]) -> dict[str, list[int]] | None:
    """The checksums of rows, if the checkpoint has any; a header that does not fit them is damaged.

    A name that is not ours is refused, as it may be one of ours with a flipped bit.
    """
    if not header.keys() <= {"format", STATE, ROWS, CHECKSUM} or header.get("format", "pt") != "pt":
        raise ValueError(f"its header has {', '.join(sorted(header))}")
    if ROWS not in header and CHECKSUM not in header:
        return None
    rows = header.get(ROWS, "")
    if header.get(CHECKSUM) != _text_checksum(header[STATE], rows):
        raise ValueError("its header is not as it was saved")
    try:
        checksums = msgspec.convert(parse_json(rows), dict[str, list[int]])
    except msgspec.ValidationError as error:
        raise ValueError(f"the checksums of its rows: {error}") from None
    if checksums.keys() != set(names):
        raise ValueError("its tensors have other names than were saved")
    return checksums


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
