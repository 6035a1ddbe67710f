"""Checkpoints of `transformers.Trainer`: one that is half written, and one that is half read.

The Trainer writes a checkpoint file by file, and `trainer_state.json` last. It reads weights by the
names they have in the model. Some models, such as OLMo-Hybrid, save weights under other names. The
Trainer (seen in transformers 5.22) leaves these at their random start when it resumes.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from outlast.errors import RunFolderError

log = logging.getLogger(__name__)

STATE_FILE = "trainer_state.json"
WEIGHTS_FILE = "model.safetensors"


def refuse_half_written(folder: Path) -> None:
    """Refuse a newest checkpoint without a readable state: the Trainer would resume from it."""
    checkpoints = {}
    for path in folder.glob("checkpoint-*"):
        number = path.name.removeprefix("checkpoint-")
        if path.is_dir() and number.isdecimal():
            checkpoints[int(number)] = path
    complete = {step: path for step, path in checkpoints.items() if _has_state(path)}
    if not checkpoints or max(checkpoints) in complete:
        return
    newest, remedy = checkpoints[max(checkpoints)], "there is no complete one"
    if complete:
        remedy = f"the last complete one is {complete[max(complete)]}"
    raise RunFolderError(
        f"{newest} is half written: it has no readable {STATE_FILE}; delete this folder; {remedy}"
    )


def restore_renamed(model: nn.Module, checkpoint: Path) -> list[str]:
    """Load the weights that the Trainer left out because they have other names in the file.

    Returns their names. Nothing is done if the folder is not the one that was resumed from.
    """
    names = _saved_names(checkpoint)
    if not names or not isinstance(model, PreTrainedModel):
        return []
    weights: dict[str, Tensor] = model.state_dict()
    read = {weights[name].data_ptr() for name in names & weights.keys()}
    missing = [
        name for name in weights if name not in names and weights[name].data_ptr() not in read
    ]
    if not missing or any(isinstance(weight, DTensor) for weight in weights.values()):
        return []
    with torch.random.fork_rng(devices=[]):  # the next draw is that of the order of the data
        saved = type(model).from_pretrained(checkpoint, dtype=model.dtype).state_dict()
    if not all(torch.equal(weights[name].cpu(), saved[name]) for name in names & weights.keys()):
        return []
    for name in missing:
        weights[name].copy_(saved[name])
    log.warning("%d weights were restored by Outlast, not by the Trainer", len(missing))
    return missing


def _saved_names(checkpoint: Path) -> set[str]:
    try:
        index = checkpoint / f"{WEIGHTS_FILE}.index.json"
        if index.exists():
            return set(json.loads(index.read_text("utf-8"))["weight_map"])
        with safe_open(checkpoint / WEIGHTS_FILE, "pt") as file:
            return set(file.keys())
    except (OSError, ValueError, KeyError):
        return set()  # a checkpoint of another kind


def _has_state(checkpoint: Path) -> bool:
    try:
        return isinstance(json.loads((checkpoint / STATE_FILE).read_text("utf-8")), dict)
    except (OSError, ValueError):
        return False
