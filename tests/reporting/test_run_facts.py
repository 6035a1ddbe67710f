"""A run's settings and its command on the page."""

from __future__ import annotations

import html
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from report_folders import claim, write_run, write_study

from outlast.cli import main
from outlast.reporting.load import load_run
from outlast.reporting.page import report
from outlast.reporting.run_facts import changed_settings, run_facts, train_command
from outlast.runs.spec import RunSpec, Settings
from outlast.workflow import create

CHANGED: dict[str, Any] = {
    "steps": 300, "batch_size": 16, "lr": 0.0007, "schedule": "cosine", "warmup": 7,
    "decay_from": 0.5, "max_grad_norm": 2.5, "weight_decay": 0.0, "precision": "bf16",
    "steps_per_block": 25, "probe_every": 75, "checkpoint_every": 150,
    "stop": "success(accuracy=0.95)", "by_length": True, "seeds_at_once": 3, "processes": 2,
    "keep_checkpoints": "every=50",
}  # fmt: skip

without_figures = pytest.mark.usefixtures("no_figures")


def write_changed(folder: Path, settings: dict[str, Any], **more: Any) -> Path:
    """A run of these settings; ``more`` are other fields of its record."""
    run = write_run(folder, label="an arm's label", seeds=(0, 1, 2, 5), until=0)
    record = json.loads((run / "run.json").read_text()) | {"settings": settings} | more
    (run / "run.json").write_text(json.dumps(record))
    return run


def typed(command: str, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    """The run that the command line would make."""
    specs: list[RunSpec] = []

    class Created(Exception):
        """Nothing more is to happen."""

    def create_runs(runs: list[tuple[RunSpec, Path]], *_: object) -> None:
        specs.extend(spec for spec, _ in runs)
        raise Created

    monkeypatch.setattr(create, "create_runs", create_runs)
    program, *words = shlex.split(command)
    assert program == "outlast"
    with pytest.raises(Created):
        main(words)
    (spec,) = specs
    return spec


@without_figures
@pytest.mark.parametrize("settings", [{}, CHANGED], ids=["defaults", "changed"])
def test_command_on_the_page_makes_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    folder = write_changed(tmp_path / "folder", settings, methods=["dat", "ema(0.99)"])
    text = report([folder], tmp_path / "out").read_text()
    commands = re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", text, re.DOTALL)
    assert len(commands) == 1
    spec = typed(html.unescape(commands[0]), monkeypatch)
    assert spec == load_run(folder).record.spec
    assert set(settings) == {name for name, _ in changed_settings(spec.settings)}


def test_every_setting_is_changed_in_the_test_above() -> None:
    assert set(CHANGED) == set(vars(Settings()))


def test_label_that_is_the_folder_or_looks_like_a_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = load_run(write_changed(tmp_path / "same", {}, label="same"))
    assert "--label" not in train_command(same)
    flag = load_run(write_changed(tmp_path / "flag", {}, label="--steps 'x"))
    assert typed(train_command(flag), monkeypatch).label == "--steps 'x"


def test_facts_say_task_model_methods_seeds_settings_machine_and_date(tmp_path: Path) -> None:
    run = write_changed(tmp_path / "b", {"steps": 300}, pack=["a", "b"], device="NVIDIA H200")
    facts = dict(run_facts(load_run(run)))
    assert facts == {
        "task": "composite(modulus=2, queries=4, keys=64)",
        "model": "1 x (lstm | attention(nope) > mlp) @ 64",
        "methods": "dat(mode=skip, switch=plateau)",
        "seeds": "0-2, 5",
        "settings": "steps=300; the others are defaults",
        "tested": "2,048 sequences at each length, precision fp32",
        "machine": "NVIDIA H200",
        "versions": "outlast 0.1.0, python 3.11.7, torch 2.13.0, numpy 2.4.6",
        "date": "2026-11-15 08:00 UTC",
        "trained with": "a",
    }
    facts = dict(run_facts(load_run(write_run(tmp_path / "new", evaluated=False))))
    assert facts["tested"] == "not yet"


def test_study_page_has_its_command_and_that_of_each_arm(demo: Path) -> None:
    text = (demo / "index.html").read_text()
    commands = re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", text)
    assert commands[0] == "outlast reproduce dat --scale demo"
    assert len(commands) == 6
    assert all(command.startswith("outlast train --task ") for command in commands[1:])


@without_figures
def test_arm_that_was_not_run_has_no_command(tmp_path: Path) -> None:
    write_run(tmp_path / "study" / "a", until=0)
    arms = [("a", "A", "g"), ("b", "B", "g")]
    study = write_study(tmp_path / "study", arms, [claim("It holds", "b", low=0.9)])
    text = report([study], tmp_path / "out").read_text()
    assert text.count("outlast train") == 1
    assert "Not run yet." in text
