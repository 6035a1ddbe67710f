"""Analyses of run folders: what is asked for, where it is written, and what is left alone."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console

import outlast
from outlast.analysis.headlines import HEADLINES, headline
from outlast.analysis.runs import (
    ANALYSES,
    AnalysisSettings,
    analyse_run,
    prepared,
    seeds_and_steps,
)
from outlast.analysis.sequences import NothingToSeeError
from outlast.cli import common, main
from outlast.errors import OutlastError, RunFolderError
from outlast.models import Model
from outlast.reporting.analysis_by_length import analysis_figure
from outlast.reporting.anatomy_by_length import anatomy_figure, anatomy_finding, anatomy_shares
from outlast.reporting.gradients_by_step import gradients_figure
from outlast.reporting.load import read
from outlast.reporting.panels import NARROW, WIDE
from outlast.reporting.summary import summarise_arm
from outlast.runs.analyses import AnalysisTable, Row, read_analysis, write_analysis
from outlast.runs.folder import CHECKPOINT
from outlast.runs.records import read_run

FEW = ["--sequences", "8", "--lengths", "1", "2"]


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("analysed") / "hybrid"
    outlast.fit(
        "composite(modulus=2, keys=12, queries=2, length=3)",
        "lstm > attention(heads=2) > mlp @ 16",
        folder,
        methods="dat(switch=0.5)",
        seeds=[0, 2],
        steps=4,
        batch_size=4,
        probe_every=0,
        keep_checkpoints="every=2",
        steps_per_block=1,
    )
    return folder


@pytest.fixture(scope="module")
def recurrence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("analysed") / "lstm"
    outlast.fit("parity(length=3)", "lstm @ 8", folder, seeds=[0], steps=1)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "analysis"
    }


def test_every_analysis_is_written_and_the_rest_of_the_folder_stays(
    hybrid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(hybrid)
    assert main(["analyse", str(hybrid), *FEW]) == 0
    assert files(hybrid) == before
    said = capsys.readouterr().out
    for name in ANALYSES:
        table = read_analysis(hybrid, name)
        assert table is not None
        assert {row["seed"] for row in table.rows} == {0, 2}
        assert f"{name}: {len(table.rows):,} rows" in said
        nothing = HEADLINES[name].nothing
        assert (
            name == "gradients"
            or headline(HEADLINES[name], table.rows)
            or (nothing and nothing in said)
        )


def test_headline_shows_the_lowest_and_highest_seed(
    hybrid: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "console", Console(width=200, color_system=None))
    assert main(["analyse", str(hybrid), "--only", "state-probe", *FEW]) == 0
    said = capsys.readouterr().out
    table = read_analysis(hybrid, "state-probe")
    assert table is not None
    assert "mean of 2 seeds [lowest, highest]" in said
    lines = {line.names: line for line in headline(HEADLINES["state-probe"], table.rows)}
    values = lines["1.lstm", "hidden"].values[1.0]
    assert len(values) == 2
    assert f"{sum(values) / 2:.3f} [{min(values):.3f}, {max(values):.3f}]" in said

    assert main(["analyse", str(hybrid), "--only", "state-probe", "--seeds", "0", *FEW]) == 0
    said = capsys.readouterr().out
    assert "mean of" not in said
    assert "lowest" not in said


def test_seeds_and_steps_are_those_asked_for(hybrid: Path) -> None:
    settings = AnalysisSettings((1,), 4, (2,), (0, 4))
    rows = analyse_run(hybrid, "key-probe", settings, torch.device("cpu"))
    assert {(row["seed"], row["step"]) for row in rows} == {(2, 0), (2, 4)}


def test_a_model_that_is_prepared_gives_the_same_logits_of_answers(hybrid: Path) -> None:
    task = outlast.task(read_run(hybrid).task)
    tokens = next(task.stream(batch=4)).inputs
    with torch.no_grad():
        wanted = outlast.load(hybrid, seed=0)(tokens)[0][..., : task.classes]
        logits = prepared(outlast.load(hybrid, seed=0), task)(tokens)[0]
    torch.testing.assert_close(logits, wanted)


def test_the_page_shows_why_answers_are_wrong(hybrid: Path) -> None:
    assert main(["analyse", str(hybrid), "--only", "anatomy", *FEW]) == 0
    (study,) = read([hybrid])
    arm = summarise_arm(study.arms[0])
    state, recall = anatomy_shares(arm)
    assert (state.part, recall.part, state.seeds) == ("state", "recall", 2)
    for shares in (state, recall):
        assert list(shares.by_multiple) == [1, 2]
        assert all(sum(bar.values()) == pytest.approx(1) for bar in shares.by_multiple.values())
    for form in (WIDE, NARROW):
        figure = anatomy_figure([arm], form)
        assert figure is not None
        assert len(figure.axes) == 2
        assert len(figure.hover_columns) == 4
    finding = anatomy_finding([arm])
    assert "hybrid" in finding
    assert finding.endswith(".")


def test_the_page_shows_what_is_inside(hybrid: Path) -> None:
    names = ["state-probe", "key-probe", "sharpness", "ablation"]
    assert main(["analyse", str(hybrid), "--only", *names, *FEW]) == 0
    (study,) = read([hybrid])
    arm = summarise_arm(study.arms[0])
    figure = analysis_figure([arm], WIDE)
    assert figure is not None
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert "keys read by a probe" in titles
    (keys,) = [ax for ax in figure.axes if ax.get_title(loc="left") == "keys read by a probe"]
    table = read_analysis(hybrid, "key-probe")
    assert table is not None
    expected = {
        (row["seed"], row["multiple"], f"{row['accuracy']:.3f}")
        for row in table.rows
        if row["bin"] is None
    }
    points = [point for point in figure.hover_points if point.ax is keys]
    assert {(point.source, point.x, point.value) for point in points} == expected


def test_the_page_reads_the_table_of_a_panel_once(
    hybrid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["analyse", str(hybrid), "--only", "key-probe", *FEW]) == 0
    (study,) = read([hybrid])
    names = []

    def note(folder: Path, name: str) -> AnalysisTable | None:
        names.append(name)
        return read_analysis(folder, name)

    monkeypatch.setattr("outlast.reporting.analysis_tables.read_analysis", note)
    assert analysis_figure([summarise_arm(study.arms[0])], WIDE) is not None
    assert names.count("key-probe") == 1


def test_the_page_shows_gradients_at_the_steps_that_all_seeds_have(hybrid: Path) -> None:
    assert main(["analyse", str(hybrid), "--only", "gradients", *FEW]) == 0
    (study,) = read([hybrid])
    figure = gradients_figure([summarise_arm(study.arms[0])], WIDE)
    assert figure is not None
    table = read_analysis(hybrid, "gradients")
    assert table is not None
    by_step: dict[int, list[float]] = {}
    for row in table.rows:
        if row["layer"] == row["part"] == "all" and row["cosine"] is not None:
            by_step.setdefault(row["step"], []).append(row["cosine"])
    means = [sum(values) / len(values) for values in by_step.values() if len(values) == 2]
    drawn = [list(line.get_ydata()) for line in figure.axes[0].lines]
    assert means
    assert any(line == pytest.approx(means) for line in drawn if len(line) == len(means))


@pytest.mark.parametrize("name", [name for name in ANALYSES if name != "gradients"])
def test_a_seed_that_has_diverged_is_named(
    hybrid: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = outlast.load(hybrid, 2)
    with torch.no_grad():
        model.sublayers()[1].mixer.qkv.weight[0, 0] = torch.nan
    task = outlast.task("composite(modulus=2, keys=12, queries=2, length=3)")
    with pytest.raises(NothingToSeeError, match=r"weights of lstm > .* are not finite: .*qkv"):
        ANALYSES[name](model, task, (1,), 8)
    monkeypatch.setattr("outlast.analysis.runs.load", lambda *_: model)
    with pytest.raises(NothingToSeeError, match=r"hybrid, seed 2, are not finite"):
        analyse_run(hybrid, name, AnalysisSettings((1,), 8, (2,)), torch.device("cpu"))


@pytest.mark.parametrize("name", ["sharpness", "covariance", "token-filter"])
def test_attention_that_has_not_joined_is_said_to_wait(
    hybrid: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    model = outlast.load(hybrid, 2)
    for sublayer in model.sublayers():
        if sublayer.pathway == "attention":
            sublayer.set_gate(0)
    monkeypatch.setattr("outlast.analysis.runs.load", lambda *_: model)
    words = "^the attention of seed 2 has not joined yet: its gate is 0, as before the switch of"
    with pytest.raises(NothingToSeeError, match=words):
        analyse_run(hybrid, name, AnalysisSettings((1,), 8, (2,)), torch.device("cpu"))


@pytest.mark.parametrize("name", ["sharpness", "covariance", "token-filter"])
def test_seeds_and_steps_that_have_not_joined_do_not_take_the_others_with_them(
    hybrid: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = ["--steps", "0", "2", "4"]  # attention joins at step 2
    assert main(["analyse", str(hybrid), "--only", name, *steps, *FEW]) == 0
    words = "the attention of seeds 0, 2 at step 0 has not joined yet: its gate is 0"
    said = capsys.readouterr().out
    assert f"  left out: {words}" in said
    assert said.count("left out: ") == 1
    table = read_analysis(hybrid, name)
    assert table is not None
    assert {(row["seed"], row["step"]) for row in table.rows if row["step"] is not None} == {
        (seed, step) for seed in (0, 2) for step in (2, 4)
    }
    assert main(["analyse", str(hybrid), "--only", name, "--steps", "0", *FEW]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("name", ["sharpness", "covariance", "token-filter"])
def test_seed_that_has_not_joined_does_not_take_the_others_with_it(
    hybrid: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def loaded(folder: Path, seed: int, step: int | None) -> Model:
        model = outlast.load(folder, seed, step)
        for sublayer in model.sublayers():
            if seed == 0 and sublayer.pathway == "attention":
                sublayer.set_gate(0)
        return model

    monkeypatch.setattr("outlast.analysis.runs.load", loaded)
    said: list[str] = []
    settings = AnalysisSettings((1,), 8)
    rows = analyse_run(hybrid, name, settings, torch.device("cpu"), said.append)
    assert {row["seed"] for row in rows} == {2}
    (words,) = said
    assert words.startswith("the attention of seed 0 has not joined yet: its gate is 0, as before")


def test_seeds_and_steps_are_named_in_few_words() -> None:
    assert seeds_and_steps([(0, None), (3, None)]) == "seeds 0, 3"
    pairs = [(seed, step) for seed in range(4) for step in (0, 50)]
    words = "seeds 0-3 at steps 0, 50 and seed 2 at step 80"
    assert seeds_and_steps([*pairs, (2, 80)]) == words


def test_what_does_not_apply_is_left_out_and_said(
    recurrence: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyse", str(recurrence), *FEW]) == 0
    said = capsys.readouterr().out
    assert "sharpness: left out, model=lstm @ 8: expected a model with attention" in said
    assert read_analysis(recurrence, "sharpness") is None
    assert read_analysis(recurrence, "state-probe") is not None
    assert main(["analyse", str(recurrence), "--only", "sharpness", *FEW]) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--only", "anatomi"], "there is no analysis 'anatomi'; did you mean 'anatomy'"),
        (["--only", "sharpnes"], r"there is no analysis 'sharpnes'; did you mean 'sharpness'\?"),
        (["--seeds", "1"], "seeds=1: expected seeds of .*: 0, 2"),
        (["--steps", "3", *FEW], "has no weights of step 3: kept are those of 0, 2; the last"),
        (["--toward", "dat"], "toward=dat: expected a run folder, or the end of the name"),
        (["--toward", "dat", "--only", "anatomy"], "toward=dat: expected gradients among"),
        (["--sequences", "0"], "sequences=0"),
        (["--lengths", "0"], "lengths=0"),
        (["--lengths", "1", "1", "2"], "lengths=1 1 2: expected each multiple once"),
    ],
)
def test_bad_input_is_refused_in_words(
    hybrid: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyse", str(hybrid), *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("token-filter") <= 1
    with pytest.raises(OutlastError, match=message):
        raise OutlastError(error)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--only", "key-probe", "--steps", "3"], "has no weights of step 3"),
        (["--only", "key-probe"], "no checkpoint"),
        (["--only", "gradients"], "no checkpoint"),
    ],
)
def test_weights_that_are_absent_are_said_before_rows_that_would_be_lost(
    hybrid: Path,
    tmp_path: Path,
    flags: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = Path(shutil.copytree(hybrid, tmp_path / "run", ignore=lambda *_: ["analysis"]))
    rows: list[Row] = [{"seed": seed, "step": None, "multiple": 1.0} for seed in (0, 2)]
    for name in ("key-probe", "gradients"):
        write_analysis(run, AnalysisTable(analysis=name, settings={"sequences": 3}, rows=rows))
    if "--steps" not in flags:
        (run / CHECKPOINT).unlink()
    assert main(["analyse", str(run), *flags, *FEW]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "lose" not in error


def test_run_without_its_last_checkpoint_says_which_steps_can_be_analysed(
    hybrid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(hybrid, tmp_path / "run", ignore=lambda *_: ["analysis"]))
    (run / CHECKPOINT).unlink()
    assert main(["analyse", str(run), *FEW]) == 2
    error = capsys.readouterr().err
    assert "has no checkpoint.safetensors, which has the weights of the end of training" in error
    assert "The weights of steps 0, 2 were kept: --steps 2 analyses them" in error

    assert main(["analyse", str(run), "--steps", "2", *FEW]) == 0
    said = capsys.readouterr().out
    assert f"gradients: left out, {run} has no checkpoint.safetensors" in said
    assert "(--toward)" in said
    assert all(read_analysis(run, name) for name in ANALYSES if name != "gradients")
    assert main(["analyse", str(run), "--steps", "2", "--only", "gradients", *FEW]) == 2
    toward = ["--only", "gradients", "--toward", str(hybrid)]
    assert main(["analyse", str(run), "--steps", "2", *toward, *FEW]) == 0


def test_damaged_table_names_its_file(hybrid: Path) -> None:
    assert main(["analyse", str(hybrid), "--only", "key-probe", *FEW]) == 0
    path = hybrid / "analysis" / "key-probe.json"
    path.write_text('{"format": 2, "rows": 3}')
    advice = "delete it: 'outlast analyse .*hybrid --only key-probe' makes it again"
    with pytest.raises(RunFolderError, match=rf"key-probe\.json.*{advice}"):
        read_analysis(hybrid, "key-probe")
    path.unlink()


@pytest.mark.parametrize("name", ["key-probe", "ablation", "gradients"])
@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({}, r"rows\[0\]"),
        ({"seed": "x", "step": None, "multiple": 1.0}, r"rows\[0\]\.seed"),
        ({"seed": 0, "step": "x", "multiple": 1.0}, r"rows\[0\]\.step"),
    ],
    ids=["empty", "seed", "step"],
)
def test_damaged_row_of_a_table_is_named(
    hybrid: Path, tmp_path: Path, name: str, row: Row, field: str
) -> None:
    run = Path(shutil.copytree(hybrid, tmp_path / "run", ignore=lambda *_: ["analysis"]))
    table = {"format": 2, "analysis": name, "rows": [row]}
    (run / "analysis").mkdir()
    (run / "analysis" / f"{name}.json").write_text(json.dumps(table))
    assert main(["analyse", str(run), "--only", name, *FEW]) == 2
    with pytest.raises(RunFolderError, match=rf"{name}\.json.*{field}"):
        outlast.report(run, tmp_path / "page")


def test_a_run_that_starts_anew_has_no_tables_of_the_old_one(recurrence: Path) -> None:
    assert main(["analyse", str(recurrence), "--only", "state-probe", *FEW]) == 0
    outlast.fit("parity(length=3)", "lstm @ 8", recurrence, seeds=[0], steps=1, overwrite=True)
    assert not (recurrence / "analysis").exists()
