"""benchmarks/weights.py: it has the models of the page, and each against the plain softmax."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "weights.py"
#: weights of the models by their names in the page
WEIGHTS = {
    "weights-softmax": "weights=softmax",
    "far-separate": "weights=scalable",
    "weights-asentmax": "weights=asentmax",
    "weights-temperature": "weights=temperature(21)",
    "weights-tra": "attention(tra,",
    "weights-tra-sharpen-true": "attention(tra(sharpen=true),",
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("weights_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_models_are_those_of_the_page(script: ModuleType) -> None:
    runs = script.runs()
    assert list(runs) == list(WEIGHTS)
    assert all(part in runs[name].model for name, part in WEIGHTS.items())
    assert len({run.task for run in runs.values()}) == 1
    assert {run.settings.batch_size for run in runs.values()} == {32}


def test_each_model_has_a_line_against_the_plain_softmax(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # of this process
    with torch.random.fork_rng(devices=[]):
        script.main(["--steps", "1", "--repeats", "1"])
    rows = {row["arm"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert list(rows) == list(WEIGHTS)
    assert rows["weights-softmax"]["against_softmax"] == [1, 1, 1]
    assert all(min(row["against_softmax"]) > 0 for row in rows.values())
    more = {name: row["more_weights"] for name, row in rows.items()}
    assert more["weights-softmax"] == more["weights-temperature"] == 0
    assert more["far-separate"] == 2  # one for each head
