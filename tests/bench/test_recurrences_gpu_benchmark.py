"""benchmarks/recurrences_gpu.py: it says what fails, and measures the rest."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from outlast.kernels import libraries

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "recurrences_gpu.py"


def test_a_side_that_fails_is_one_line_and_does_not_stop_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("recurrences_gpu_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(libraries, "installed", lambda _: False)
    monkeypatch.setattr(script, "prepare", lambda options: None)
    monkeypatch.setattr(script, "peer", lambda name, width: 1 / 0)
    sizes = ["--device", "cpu", "--widths", "16", "--batch", "1", "--tokens", "70"]
    with torch.random.fork_rng(devices=[]):
        script.main([*sizes, "--repeats", "1", "--errors"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    by_side = {(row["layer"], row["side"]): row for row in rows if "layer" in row}
    assert {layer for layer, _ in by_side} == set(script.LAYERS)
    for (_, side), row in by_side.items():
        assert ("ms" in row) == (side == "ours")
        assert ("error" in row) == (side != "ours")
    off = [row["errors"] for row in rows if row.get("way") == "ours" and "errors" in row]
    assert len(off) == 3
    assert all(number < 1e-4 for numbers in off for number in numbers.values())
