"""Small runs for the page of `outlast view`: made once for all tests that look at them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from outlast.runs.analyses import AnalysisTable, Row, write_analysis
from outlast.runs.study import ArmRecord, StudyRecord, write_study
from outlast.view.catalogue import find_entries
from outlast.view.library import Library
from outlast.workflow.evaluate import Evaluation, evaluate_run
from tiny_runs import create, tiny, trained

#: sequences of each length in the test of the runs
SEQUENCES = 16
#: the attention of this scheme drops keys
TRA = "lstm | attention(tra, heads=2) > mlp @ 16, head=2"


def write_runs(home: Path) -> Path:
    """A study of two arms, a run without attention, one not trained, one of another version."""
    study = home / "study"
    dat = trained(tiny("dat(switch=10)", checkpoint_every=30), study / "dat")
    trained(tiny(model=TRA, steps=5, warmup=1, probe_every=0, checkpoint_every=5), study / "tra")
    evaluate_run(dat, Evaluation((1, 2), SEQUENCES))
    arms = (ArmRecord("dat", "hybrid, DAT"), ArmRecord("tra", "hybrid <b>TRA</b>"))
    write_study(study, StudyRecord(study="demo", title="Two hybrids", arms=arms))
    plain = {"task": "parity(length=4)", "model": "lstm > mlp @ 16, head=2"}
    trained(tiny(**plain, steps=5, warmup=1, probe_every=0, checkpoint_every=5), home / "lstm")
    create(tiny(), home / "new")
    shutil.copytree(home / "new", home / "old")
    record = json.loads((home / "old/run.json").read_text())
    (home / "old/run.json").write_text(json.dumps(record | {"format": 99}))
    write_causes(dat)
    return home


def write_causes(folder: Path) -> None:
    """A failure anatomy as `outlast analyse` leaves it."""
    shares = {"right": 0.5, "state": 0.3, "key": 0.2}
    rows: list[Row] = [
        {"seed": seed, "step": step, "multiple": length / 4, "length": length}
        | {"part": "recall", "cause": cause, "share": share}
        for seed in (0, 1)
        for step in (10, 30)
        for length in (4, 8)
        for cause, share in shares.items()
    ]
    write_analysis(folder, AnalysisTable(analysis="anatomy", rows=rows))


def library_of(home: Path) -> Library:
    """A library of all runs below a folder."""
    return Library(find_entries([home]))
