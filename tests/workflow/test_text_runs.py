"""Runs on text: trained, probed, tested, reported and resumed like others; never on other text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import outlast
from outlast.cli import main
from outlast.errors import OutlastError, RunFolderError
from outlast.runs.records import read_results, read_run
from outlast.workflow.load import open_run
from outlast.workflow.train import train_and_evaluate
from small_text import document, write_text

MODEL = "lstm > attention(heads=1) > mlp @ 16"
SMALL = {"steps": 40, "batch_size": 8, "steps_per_block": 10, "probe_every": 20}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("runs")
    task = f'text("{write_text(home / "text", 12, 3000)}", length=32, reach=4)'
    method = "dat(phase1=full, switch=0.5)"
    settings = SMALL | {"checkpoint_every": 20, "lr": 1e-2, "warmup": 5}
    outlast.fit(task, MODEL, home / "run", method, range(2), "cpu", progress=False, **settings)
    return home / "run"


def test_run_learns_and_its_rows_have_bits(run: Path) -> None:
    rows = read_results(run / "results.json").rows
    tested = [row for row in rows if row["multiple"] <= 4]
    assert {row["seed"] for row in tested} == {0, 1}
    assert all(row["bits"]["all"] < 5.5 for row in tested)  # 8 without learning
    assert all(row["exact"] is None for row in rows)
    past = [row for row in rows if row["multiple"] > 4]
    assert past
    assert all(row["reason"] == "the task ends at length 128" for row in past)
    probes = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum(set(line.get("probe_bits", ())) == {"1", "3"} for line in probes) == 4


def test_results_as_rows_and_as_a_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outlast.results(run)[0]["bits"]["all"] > 0
    assert main(["eval", str(run), "--lengths", "1", "2", "--sequences", "16"]) == 0
    shown = capsys.readouterr().out
    assert "bits per byte (lower is better), the same bytes at each length" in shown
    assert "all 128," in shown


def test_page_has_bits_and_no_accuracies(run: Path, tmp_path: Path) -> None:
    page = outlast.report(run, tmp_path / "page")
    text = (tmp_path / "page" / "report.md").read_text()
    assert "Bits per byte, lower is better" in text
    assert "zlib takes" in text
    assert "entirely right" not in text
    assert (tmp_path / "page" / "figures" / "bits.svg").is_file()
    assert "How the bits were made" in page.read_text()
    numbers = json.loads((tmp_path / "page" / "results.json").read_text())
    first = numbers["studies"][0]["arms"][0]["results"][0]["lengths"][0]
    assert first["bits"]["all"]["n"] == 2


def test_record_has_the_checksum_and_other_text_is_refused(run: Path, tmp_path: Path) -> None:
    record = read_run(run)
    assert record.corpus is not None
    assert record.corpus.checksum == outlast.task(record.task).checksum
    changed = run.parent / "text" / "000.txt"
    before = changed.read_text()
    changed.write_text(document(77, 3000))
    try:
        with pytest.raises(RunFolderError, match="has changed since the run was created"):
            open_run(run, torch.device("cpu"))
        with pytest.raises(RunFolderError, match="has changed since the run was created"):
            train_and_evaluate([run], torch.device("cpu"))
    finally:
        changed.write_text(before)
    open_run(run, torch.device("cpu"))


def test_stop_on_success_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(OutlastError, match=r"stop=success.*cannot be combined with task=text"):
        outlast.fit(read_run(run).task, MODEL, tmp_path / "run", stop="success", **SMALL)


def test_seed_among_others_sees_the_text_that_it_sees_alone(run: Path, tmp_path: Path) -> None:
    task = read_run(run).task
    settings = SMALL | {"steps": 10, "probe_every": 0, "precision": "fp32"}
    both = outlast.fit(
        task, MODEL, tmp_path / "both", (), (0, 1), "cpu", progress=False, **settings
    )
    one = outlast.fit(task, MODEL, tmp_path / "one", (), (1,), "cpu", progress=False, **settings)
    mine = [row["bits"]["all"] for row in both if row["seed"] == 1 and "bits" in row]
    alone = [row["bits"]["all"] for row in one if "bits" in row]
    assert mine == pytest.approx(alone, abs=1e-4)
