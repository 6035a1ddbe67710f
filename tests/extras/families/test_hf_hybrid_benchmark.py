"""The benchmark of delayed attention in hybrids of `transformers` runs and writes what it says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

PROGRAM = Path(__file__).parents[3] / "benchmarks" / "hf_hybrid.py"


@pytest.mark.parametrize(
    ("family", "training"), [("olmo_hybrid", "dat-keys"), ("falcon_h1", "control")]
)
def test_every_seed_is_trained_and_probed(family: str, training: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    flags = ["--family", family, "--training", training, "--steps", "4", "--device", "cpu"]
    command = [sys.executable, PROGRAM, *flags, "--seeds", "3", "5", "--out", out]
    subprocess.run(command, check=True, capture_output=True)
    results = json.loads(out.read_text())["results"]
    assert [result["seed"] for result in results] == [3, 5]
    for result in results:
        assert result["switched"] == 2
        assert set(result["right"]) == {"1", "3", "6"}
        assert all(0 <= share <= 1 for share in result["keys"].values())
