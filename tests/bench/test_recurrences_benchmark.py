"""benchmarks/recurrences.py: all sides of each layer compute the same."""

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
def test_layer_in_chunks_equals_its_loops_over_tokens(
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
    loops = ["loop"] if alone else ["loop", "layer_loop", "lean_loop"]
    for row in rows:
        assert row["error"] < 1e-4
        assert list(row["ms"]) == ["chunks", *loops]
        assert list(row["times_faster"]) == loops
        assert all(times > 0 for times in row["times_faster"].values())


def test_loop_over_tokens_calls_the_layer_for_each_token(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens: list[int] = []

    class Layer(torch.nn.Linear):
        def forward(self, x: torch.Tensor, state: object = None) -> object:
            assert (state is None) == (not tokens)
            tokens.append(x.shape[1])
            return super().forward(x), len(tokens)

    monkeypatch.setattr(script.mixers, "build", lambda name, width: Layer(width, width))
    with torch.random.fork_rng(devices=[]):
        sides = script.of_layer("minlstm", 4, 2, 5)
        for name, lengths in {"chunks": [5], "layer_loop": [1] * 5, "lean_loop": [1] * 5}.items():
            tokens.clear()
            sides[name]()
            assert tokens == lengths


def test_difference_is_that_of_the_worst_tensor(script: ModuleType) -> None:
    ours, theirs = torch.tensor([1.0, 4.0]), torch.tensor([2.0, 4.0])
    assert script.difference((theirs, ours), (theirs, theirs)) == 0.25
