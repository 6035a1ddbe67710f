"""A training that is killed and resumed equals one that was not, bit for bit on the CPU."""

import signal
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from forked_jobs import run_job, wait
from trainer_jobs import killed_at

MODES = ("skip", "freeze", "ramp", "detach")
#: by name: arguments of the callback and of the Trainer. All switch at step 6 of 10.
CASES = {
    "skip": {"callback": {"mode": "skip", "switch": "below(3.4)"}},
    "freeze": {"callback": {"mode": "freeze", "switch": 6}},
    "ramp": {"callback": {"mode": "ramp", "switch": 0.6, "ramp": 4}},
    "detach": {"callback": {"mode": "detach", "switch": "below(1e-9)", "latest": 6}},
    "metric": {
        "callback": {"switch": "above(3.3)", "metric": "eval_loss"},
        "trainer": {"eval_strategy": "steps", "eval_steps": 6, "evaluate": True},
    },
    "olmo_hybrid": {"callback": {"mode": "skip", "switch": 6}},
}
#: checkpoints are made after steps 3, 6 and 9; a kill comes before the checkpoint of its step
KILLS = {"phase 1": 5, "step of the switch": 6, "after the switch": 8, "end": 10}
KILLED = [(case, kill) for case in CASES for kill in KILLS if case in MODES or kill != "end"]


def weights_equal(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def outcome(folder: Path, step: int | None, case: str, resume: bool = False) -> int:
    """Train in a process of its own; what it ended with."""
    family = case if case == "olmo_hybrid" else "bamba"
    return wait(run_job(killed_at, str(folder), step, CASES[case], family, resume))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[str, dict]:
    folders = {case: tmp_path_factory.mktemp(case) for case in CASES}
    assert [outcome(folder, None, case) for case, folder in folders.items()] == [0] * len(CASES)
    return {case: torch.load(folder / "result.pt") for case, folder in folders.items()}


@pytest.mark.parametrize(("case", "kill"), KILLED)
def test_killed_and_resumed_training_equals_an_uninterrupted_one(
    uninterrupted, tmp_path: Path, case: str, kill: str
):
    assert outcome(tmp_path, KILLS[kill], case) == -signal.SIGKILL
    assert not (tmp_path / "result.pt").exists()
    assert outcome(tmp_path, None, case, resume=True) == 0
    resumed, whole = torch.load(tmp_path / "result.pt"), uninterrupted[case]
    assert resumed["switched"] == whole["switched"] == 6
    assert weights_equal(resumed["weights"], whole["weights"])
