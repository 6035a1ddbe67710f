"""benchmarks/recurrences.py: both sides of each layer compute the same."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "recurrences.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recurrences_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("alone", [False, True])
def test_layer_in_chunks_equals_its_loop_over_tokens(
    alone: bool,
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = ["--width", "8", "--batch", "2", "--tokens", "70", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["recurrences.py", *sizes, *["--recurrence"] * alone])
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # of this process
    with torch.random.fork_rng(devices=[]):
        script.main()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["layer"] for row in rows] == list(script.LAYERS)
    assert all(row["error"] < 1e-4 and row["times_faster"] > 0 for row in rows)
