"""Sound folders to spoil: a run, a grid of two and a study of two, each trained for a moment."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from outlast.runs.spec import RunSpec, Settings
from outlast.runs.study import ArmRecord, Claim, StudyRecord, write_study
from outlast.workflow.create import create_runs
from outlast.workflow.evaluate import Evaluation
from outlast.workflow.grid import expand_grid
from outlast.workflow.train import train_and_evaluate
from tiny_runs import CPU

TEST = Evaluation((1.0, 3.0), 8)
SETTINGS = Settings(
    steps=4, batch_size=2, warmup=0, steps_per_block=2, probe_every=2, checkpoint_every=2
)
RUN_SPEC = RunSpec(
    "parity(length=4)", "lstm > attention(heads=2) > mlp(expand=1) @ 4", ("dat(switch=2)",),
    (0, 1), SETTINGS, "a run",
)  # fmt: skip


def _make(run: RunSpec, folder: Path) -> Path:
    create_runs([(run, folder)], CPU)
    train_and_evaluate([folder], CPU, evaluations={folder: TEST})
    return folder


@cache
def samples() -> Path:
    """A folder with ``run``, ``other`` (of another rate), ``grid`` and ``study`` in it."""
    home = Path(tempfile.mkdtemp(prefix="outlast-fuzz-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    _make(RUN_SPEC, home / "run")
    _make(RunSpec(**{**vars(RUN_SPEC), "settings": Settings(**{**vars(SETTINGS), "lr": 0.1})}),
          home / "other")  # fmt: skip
    runs = expand_grid(RUN_SPEC, ["lr=0.001,0.002"], home / "grid")
    folders = [folder for _, folder in runs]
    create_runs(runs, CPU, grid=home / "grid", pack=[folder.name for folder in folders])
    train_and_evaluate(folders, CPU, evaluations=dict.fromkeys(folders, TEST))
    arms = (ArmRecord("first", "the first"), ArmRecord("second"))
    claim = Claim("it is above chance", "first", 1, low=0.5)
    record = StudyRecord(
        study="x", title="t", question="q?", command="c", arms=arms, claims=(claim,)
    )
    write_study(home / "study", record)
    shutil.copytree(home / "run", home / "study" / "first")
    return home
