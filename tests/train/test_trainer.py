"""The training loop: what it writes down, what it tells, in which precision."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import outlast
import outlast.train.trainer as trainer_module
from outlast.errors import TrainingError
from outlast.runs.checkpoint import load_checkpoint, load_state
from outlast.runs.records import read_metrics, read_run
from outlast.train.run_state import Progress
from outlast.workflow.train import Listener
from tiny_runs import (
    SETTINGS,
    InMemory,
    Recorder,
    block_lines,
    create,
    events,
    probe_lines,
    resume,
    tiny,
    trained,
)


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def folder(recorder: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained to its end, and what was told meanwhile."""
    folder = create(tiny("dat(switch=15)"), tmp_path_factory.mktemp("trained") / "run")
    assert resume(folder, recorder)
    return folder


def test_metrics_have_a_line_for_each_seed_and_block(folder: Path) -> None:
    lines = read_metrics(folder)
    blocks, probes = block_lines(lines), probe_lines(lines)
    both = (0, 1)
    assert [(x.step, x.seed) for x in blocks] == [(s, n) for s in range(5, 31, 5) for n in both]
    assert [(x.step, x.seed) for x in probes] == [(s, n) for s in (10, 20, 30) for n in both]
    assert all(set(line.probe or {}) == {"1", "3"} for line in probes)
    switches = [(x.step, x.event, x.details["method"]) for x in events(lines)]
    assert switches == [(15, "switch", "dat")] * 2
    for line in blocks:
        assert set(line.loss or {}) == {"state", "recall", "running"}
        accuracies = (line.accuracy or {}).values()
        assert len(accuracies) == 3
        assert all(value is not None and 0 <= value <= 1 for value in accuracies)


def test_record_says_what_a_reader_wants_to_know(folder: Path) -> None:
    record = read_run(folder)
    assert record.parts == ("state", "recall", "running")
    assert record.auxiliary == ("running",)
    assert record.length == 4
    assert record.parameters == outlast.model(record.model, record.task).size
    assert record.chance["state"] == pytest.approx(0.5)
    assert record.chance["joint"] == pytest.approx(0.5**3)
    assert record.versions["torch"].split("+")[0] == torch.__version__.split("+")[0]


def test_listener_is_told_of_every_block(folder: Path, recorder: Recorder) -> None:
    messages = recorder.progress
    assert [progress.step for progress in messages] == list(range(5, 31, 5))
    assert [progress.waiting for progress in messages] == [2, 2, 0, 0, 0, 0]
    assert messages[-1].seconds_left == 0
    assert set(messages[-1].probe) == {"1", "3"}


def test_time_left_is_told_without_the_first_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the start; the first block's end, for its report and for what comes; two more blocks
    clock, recorder = iter([0.0, 100.0, 100.0, 101.0, 102.0]), Recorder()
    monkeypatch.setattr(trainer_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    resume(create(tiny(steps=15, checkpoint_every=5), tmp_path / "run"), recorder)
    assert [progress.seconds_left for progress in recorder.progress] == [200.0, 1.0, 0.0]


def test_there_is_no_block_after_the_end() -> None:
    ended = InMemory(tiny(steps=5)).steps(5)
    with pytest.raises(TrainingError, match="all runs are at their end"):
        ended.trainer.next_block()


def test_training_learns(tmp_path: Path) -> None:
    """The parity of two bits, in a moment: gradients go where they should."""
    run = tiny(task="parity(length=2)", model="lstm > mlp @ 16", steps=150, lr=1e-2, probe_every=0)
    first, *_, last = InMemory(run).steps(150).losses(0)
    assert first[0] > 0.5
    assert last[0] < 0.1


def test_last_block_may_be_shorter(tmp_path: Path) -> None:
    run = tiny(steps=17, steps_per_block=10, checkpoint_every=10, probe_every=10)
    folder = trained(run, tmp_path / "run")
    assert [line.step for line in block_lines(read_metrics(folder))] == [10, 10, 17, 17]
    assert load_state(folder).step == 17


def test_bf16_trains_on_finite_losses_and_float32_weights(tmp_path: Path) -> None:
    folders = [
        trained(tiny("dat(switch=10)", precision=name, steps=20), tmp_path / name)
        for name in ("bf16", "fp32")
    ]
    half, full = (block_lines(read_metrics(folder)) for folder in folders)
    assert half
    assert half != full
    for one, other in zip(half, full, strict=True):
        assert all(value is not None and 0 < value < 5 for value in (one.loss or {}).values())
        assert one.loss == pytest.approx(other.loss, abs=0.05)
    tensors, _ = load_checkpoint(folders[0])
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())


def test_precision_is_that_of_the_run_and_is_given_back(tmp_path: Path) -> None:
    inside: list[str] = []

    class Look(Listener):
        def training(self, folder: Path, progress: Progress) -> None:
            inside.append(torch.get_float32_matmul_precision())

    before = torch.get_float32_matmul_precision()
    resume(create(tiny(precision="tf32", steps=5, probe_every=0), tmp_path / "run"), Look())
    assert inside == ["high"] != [before]
    assert torch.get_float32_matmul_precision() == before


def test_training_does_not_load_the_compiler(tmp_path: Path) -> None:
    """It would take longer than a small run; see kernels/lstm/op.py."""
    code = (
        "import sys; from pathlib import Path; import torch\n"
        "from outlast.runs.spec import RunSpec, Settings\n"
        "from outlast.workflow.create import create_runs\n"
        "from outlast.workflow.train import train_and_evaluate\n"
        "settings = Settings(steps=2, batch_size=2, steps_per_block=2, probe_every=2,\n"
        "                    checkpoint_every=2)\n"
        "run = RunSpec(*sys.argv[1:3], ('dat(switch=1)', 'ema'), (0, 1), settings)\n"
        "folder, device = Path(sys.argv[3]), torch.device('cpu')\n"
        "create_runs([(run, folder)], device)\n"
        "assert train_and_evaluate([folder], device, evaluations={}).ended\n"
        "print(sorted({'torch._dynamo', 'sympy', 'matplotlib'} & sys.modules.keys()))\n"
    )
    run = tiny()
    done = subprocess.run(
        [sys.executable, "-c", code, run.task, run.model, str(tmp_path / "run")],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_tiny_settings_have_blocks_between_checkpoints() -> None:
    """Else a kill between two checkpoints, in other tests, would lose nothing."""
    assert SETTINGS.steps_per_block < SETTINGS.checkpoint_every < SETTINGS.steps >= 30
