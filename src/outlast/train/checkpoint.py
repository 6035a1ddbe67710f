"""Checkpoints: one safetensors file, the plain state as JSON in its header.

One file means one rename: a checkpoint is there whole or not at all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from outlast.errors import RunFolderError
from outlast.runs import CHECKPOINT, FORMAT, write_atomically

#: what the plain state of every checkpoint holds
STATE = ("step", "averaged", "methods", "probe")


def save_checkpoint(folder: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write `folder/checkpoint.safetensors` atomically."""
    plain = {n: t.detach().contiguous().cpu() for n, t in tensors.items()}
    header = {"format": "pt", "outlast": json.dumps({"format": FORMAT, **state})}
    write_atomically(folder / CHECKPOINT, lambda path: _put(path, plain, header))


def _put(path: Path, tensors: dict[str, Tensor], header: dict[str, str]) -> None:
    try:
        save_file(tensors, path, header)
    except SafetensorError as error:  # a full disk, among others
        raise OSError(str(error)) from error


def load_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and state; a damaged, cut or foreign file is a clear error."""
    return _read(folder, with_tensors=True)


def load_state(folder: Path) -> dict[str, Any]:
    """The state alone, without reading the tensors."""
    return _read(folder, with_tensors=False)[1]


def _read(folder: Path, with_tensors: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    path = folder / CHECKPOINT
    if not path.exists():
        raise RunFolderError(f"{folder} has no {CHECKPOINT}: nothing was saved there yet")
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get("outlast")
            if header is None:
                raise RunFolderError(
                    f"{path} is a safetensors file, but not a checkpoint of outlast"
                )
            state = json.loads(header)
            if not isinstance(state, dict):
                raise ValueError("its header is not a JSON object")
            names = file.keys() if with_tensors else ()
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, ValueError) as error:
        raise RunFolderError(f"{path} is damaged or cut short: {error}") from None
    if state.get("format") != FORMAT:
        raise RunFolderError(
            f"{path} has format {state.get('format')!r}; this version reads {FORMAT}"
        )
    missing = [name for name in STATE if name not in state]
    if missing:
        raise RunFolderError(f"{path} is damaged: it has no {', '.join(missing)}")
    seeds = len(state["averaged"])  # one written before seeds could be parked has none that is
    state.setdefault("parked", [None] * seeds)
    state.setdefault("succeeded", [None] * seeds)  # nor could they succeed before their last step
    state.setdefault("streaks", [0] * seeds)
    if isinstance(state["probe"], dict):  # and its probe is the mean over them
        state["probe"] = [dict(state["probe"]) for _ in range(seeds)]
    return tensors, state


def restore(target: Tensor, tensors: dict[str, Tensor], name: str, path: Path) -> None:
    """Copy a saved tensor into place, if it is there and fits."""
    saved = tensors.get(name)
    if saved is None or saved.shape != target.shape or saved.dtype != target.dtype:
        found = "nothing" if saved is None else f"{tuple(saved.shape)} {saved.dtype}"
        raise RunFolderError(
            f"{path} does not fit this run: {name} should be {tuple(target.shape)} {target.dtype}, "
            f"found {found}"
        )
    with torch.no_grad():
        target.copy_(saved)
