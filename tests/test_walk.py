"""How much of the code one must read: to the first optimiser step, and to a trained model."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import outlast
import outlast.runs.checkpoint as checkpoint_module
import outlast.train.optimiser as optimiser_module
import walk
from tiny_runs import tiny, trained

MOST_FRAMES, MOST_FILES = 7, 43


def test_first_optimiser_step_is_few_frames_and_files_away() -> None:
    command = [sys.executable, walk.__file__]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr
    counts = dict(re.findall(r"^(frames|files): (\d+)$", process.stdout, re.MULTILINE))
    assert 4 <= int(counts["frames"]) <= MOST_FRAMES, process.stdout
    assert 20 <= int(counts["files"]) <= MOST_FILES, process.stdout


def test_load_makes_no_optimiser_and_reads_no_other_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trained(tiny("ema(0.9)", seeds=(4, 7, 9), steps=10, probe_every=0), tmp_path / "run")
    sizes: dict[str, int] = {}

    class Slices:
        def __init__(self, name: str, table: Any) -> None:
            self.name, self.table = name, table

        def __getitem__(self, rows: slice) -> torch.Tensor:
            assert rows == slice(1, 2), f"{self.name}: other seeds are read"
            sizes[self.name] = self.table[rows].numel()
            return self.table[rows]

    class File:
        def __init__(self, path: Path, framework: str) -> None:
            self.file = safe_open(path, framework)

        def __enter__(self) -> File:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.__exit__(None, None, None)

        def __getattr__(self, name: str) -> Any:
            assert name in ("metadata", "keys"), f"{name} reads whole tensors"
            return getattr(self.file, name)

        def get_slice(self, name: str) -> Slices:
            return Slices(name, self.file.get_slice(name))

    monkeypatch.setattr(checkpoint_module, "safe_open", File)
    monkeypatch.setattr(optimiser_module.AdamW, "__init__", None)
    with walk.files_walked() as files:
        model = outlast.load(folder, seed=7)
    assert "workflow/load.py" in files
    assert not files & {"train/optimiser.py", "train/trainer.py", "train/step.py"}
    assert sum(n for name, n in sizes.items() if name.startswith("weights.")) == model.size
    assert {name for name in sizes if not name.startswith("weights.")} == {"average"}
