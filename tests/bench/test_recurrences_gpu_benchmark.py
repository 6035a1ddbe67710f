"""benchmarks/recurrences_gpu.py: it says what fails, and measures the rest."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "recurrences_gpu.py"


def test_a_side_that_fails_is_one_line_and_does_not_stop_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("recurrences_gpu_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "limit", lambda: None)
    for name in ("peer", "of_fla"):
        monkeypatch.setattr(script, name, lambda *_, **__: 1 / 0)
    sizes = ["--device", "cpu", "--widths", "16", "--batch", "1", "--tokens", "70"]
    with torch.random.fork_rng(devices=[]):
        script.main([*sizes, "--repeats", "1", "--errors"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    by_side = {(row["layer"], row["side"]): row for row in rows if "layer" in row}
    assert {layer for layer, _ in by_side} == set(script.LAYERS)
    for (_, side), row in by_side.items():
        assert ("ms" in row) == side.startswith("ours")
        assert ("error" in row) == side.startswith("fla")
    off = {(row["delta_rule"], row["flips"]): row.get("errors") for row in rows if "flips" in row}
    assert off["fla", False] is off["fla", True] is None
    single = [*off["ours", False].values(), *off["ours", True].values()]
    assert all(0 < error < 1e-4 for error in single)
    # the length of a key in bfloat16 is not exactly 1; with flips that adds up
    assert off["rounded inputs", True]["y"] > 5 * off["rounded inputs", False]["y"] > 5e-3
