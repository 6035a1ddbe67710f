"""The files of a folder as types: what was written is read, and damage is named by its place."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_folders import RUN_SPEC, assert_refused

from outlast.errors import RunFolderError
from outlast.runs.folder import METRICS, RESULTS, RUN, STUDY
from outlast.runs.records import (
    EventLine,
    MetricLine,
    cut_metrics,
    read_metrics,
    read_results,
    read_run,
    write_metrics,
)
from outlast.runs.spec import RENAMED
from outlast.runs.study import read_study
from outlast.workflow.load import load, open_run
from tiny_runs import CPU, resume

Damage = Callable[[bytes], bytes]


# ---- run.json ----------------------------------------------------------------------------------


def changed(**values: Any) -> Damage:
    return lambda text: json.dumps(json.loads(text) | values).encode()


def with_text(place: str, text: str) -> Damage:
    """Put text after the first place that is so written."""
    return lambda whole: whole.replace(place.encode(), place.encode() + text.encode(), 1)


DEEP = "[" * 1000 + "]" * 1000


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: b"", r"damaged JSON \(Expecting value"),
        (lambda text: text[: len(text) // 2], r"damaged JSON \(.* line \d+ "),
        (lambda text: b'{"format": 1,\n"label": }', r"damaged JSON \(.* line 2 "),
        (lambda text: b"\xff\xfe" + text, r"damaged JSON \(.*codec"),
        (lambda text: b"[1, 2]", "expected a JSON object"),
        (changed(format=3), "its format is 3; this version of outlast reads 1 and 2"),
        (changed(format=None), "its format is None; this version"),
        (lambda text: b'{"format": 1}', "it has no task"),
        (changed(task=3), "task=3: expected text"),
        (changed(methods="dat"), 'methods="dat": expected a list'),
        (changed(seeds=[]), "seeds=: expected at least one"),
        (changed(seeds=["a"]), r'seeds\[0\]="a": expected a whole number'),
        (changed(seeds=[0, 0]), r"seeds=\[0, 0\]: expected different whole numbers"),
        (changed(settings=[]), r"settings=\[\]: expected an object"),
        (changed(settings={"step": 5}), "settings have no 'step'; did you mean 'steps'"),
        (changed(settings={"steps": "many"}), "settings: steps=many: expected a whole number"),
        (changed(settings={"batch": 0}), "batch_size=0: expected a whole number >= 1"),
        (changed(length="ten"), 'length="ten": expected a whole number'),
        (changed(chance={"joint": "x"}), r"chance=.*: expected a number for each name"),
        (changed(shown={"task": 1}), "shown.task=1: expected text"),
        (changed(length=0), "length=0: expected a whole number >= 1"),
        (changed(chance={"joint": math.nan}), "chance.joint=nan: expected a number from 0 to 1"),
        (changed(pack=["../x"]), "run name '../x' is not the name of a subfolder"),
        (changed(label="\udcff"), r"damaged JSON \(label='\\udcff': expected text in UTF-8\)"),
        (changed(versions={"\ud800": "1"}), r"damaged JSON \(.*ud800.*: expected text in UTF-8\)"),
        (with_text('"length": ', "9" * 400), r'length="9{79}\.\.\.: expected a whole number'),
        (with_text('"length": ', "9" * 5000), r'length="9{79}\.\.\.: expected a whole number'),
        (with_text('"lr": ', "9" * 400), "settings: lr=inf: expected a number of size"),
        (with_text('"lr": ', "9" * 400 + ', "lr_": '), 'settings: lr="9*.*: expected a number'),
        (with_text('"steps": ', "9" * 400), "settings: steps=.*: expected a whole number"),
        (with_text('"label": ', DEEP + ", "), r"damaged JSON \(.*nested too deeply"),
        (with_text('"label": ', "[" * 200 + "]" * 200 + ', "a": '), ".*label.*nested too deeply"),
        (lambda text: DEEP.encode(), r"damaged JSON \(it is nested too deeply"),
    ],
)
def test_damaged_run_json_is_refused_by_file_and_field(
    folder: Path, damage: Damage, message: str
) -> None:
    (folder / RUN).write_bytes(damage((folder / RUN).read_bytes()))
    assert_refused(folder, f"^cannot read .*run.json: {message}")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (changed(task="parityy"), "there is no task 'parityy'; did you mean 'parity'"),
        (changed(model="lstm > mpl"), "there is no mixer or preset 'mpl'"),
        (changed(methods=["dta"]), "there is no method 'dta'; did you mean 'dat'"),
    ],
)
def test_run_json_with_an_unknown_name_is_refused(
    folder: Path, damage: Damage, message: str
) -> None:
    (folder / RUN).write_bytes(damage((folder / RUN).read_bytes()))
    assert_refused(folder, message)


def test_run_json_with_parts_of_another_task_is_refused(folder: Path) -> None:
    (folder / RUN).write_bytes(changed(parts=["x"])((folder / RUN).read_bytes()))
    with pytest.raises(
        RunFolderError, match=r"run.json: parts=\('x',\): expected those of its task"
    ):
        load(folder)


def test_folder_without_run_json_is_named_and_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    for attempt in (lambda: open_run(missing, CPU), lambda: load(missing), lambda: resume(missing)):
        with pytest.raises(RunFolderError, match=r"has no run.json: it is not a run folder"):
            attempt()
    assert not missing.exists()


def test_format_1_with_old_names_of_settings_is_the_same_run(folder: Path) -> None:
    record = json.loads((folder / RUN).read_text())
    settings = {
        next((old for old, new in RENAMED.items() if new == name), name): value
        for name, value in record["settings"].items()
    }
    assert settings.keys() > RENAMED.keys()
    (folder / RUN).write_text(json.dumps(record | {"format": 1, "settings": settings}))
    assert read_run(folder).spec.settings == RUN_SPEC.settings
    assert resume(folder)


# ---- metrics.jsonl -----------------------------------------------------------------------------


def test_last_line_cut_short_is_left_out(folder: Path) -> None:
    whole = (folder / METRICS).read_bytes()
    lines = read_metrics(folder)
    for torn in (b"{", b'{"step": 30, "se', b'{"step": 30, "loss": \xe2\x82'):
        (folder / METRICS).write_bytes(whole + torn)
        assert read_metrics(folder) == lines
    assert resume(folder)
    assert (folder / METRICS).read_bytes() == whole


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"step": 1', "damaged JSON"),
        ("[]", "expected an object"),
        ("12", "expected an object"),
        ('{"seed": 0}', "it has no step"),
        ('{"step": "x"}', 'step="x": expected a whole number'),
        ('{"step": 1, "seed": 0, "loss": 2}', "loss=2: expected an object or null"),
        ('{"step": 1, "seed": 0, "loss": {"state": "x"}}', "loss=.*: expected a number or null"),
        ('{"step": 1, "event": "switch"}', "seed=null: expected a whole number"),
        ('{"step": 1, "seed": 0, "event": 3}', "event=3: expected text"),
        ('{"step": 1, "seed": 0, "probe": {"x": 1}}', "probe: 'x' is no multiple"),
        (f'{{"step": {"9" * 400}, "seed": 0}}', r'step="9{79}\.\.\.: expected a whole number'),
        (f'{{"step": {"9" * 5000}, "seed": 0}}', r'step="9{79}\.\.\.: expected a whole number'),
        (f'{{"step": 1, "seed": 0, "event": "x", "y": {DEEP}}}', "damaged JSON .*nested too"),
        ('{"step": 1, "seed": 0, "event": "\\udcff"}', "damaged JSON .*event=.*UTF-8"),
    ],
)
def test_damaged_line_before_the_last_is_named(folder: Path, line: str, message: str) -> None:
    first, *others = (folder / METRICS).read_text().splitlines()
    (folder / METRICS).write_text("\n".join([first, line, *others]) + "\n")
    with pytest.raises(RunFolderError, match=rf"cannot read .*metrics\.jsonl, line 2: {message}"):
        read_metrics(folder)


def test_blank_lines_are_skipped_and_unknown_fields_survive_a_cut(folder: Path) -> None:
    first, *others = (folder / METRICS).read_text().splitlines()
    noted = first.removesuffix("}") + ', "note": "by hand"}'
    (folder / METRICS).write_text("\n".join([noted, "", *others]) + "\n")
    lines = read_metrics(folder)
    assert len(lines) == 1 + len(others)
    cut_metrics(folder, lines[0].step)
    assert (folder / METRICS).read_text().splitlines()[0] == noted


def test_metrics_file_that_is_not_there_is_empty_and_a_folder_is_an_error(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    (tmp_path / METRICS).mkdir()
    with pytest.raises(RunFolderError, match=r"cannot read .*metrics.jsonl: Is a directory"):
        read_metrics(tmp_path)


def test_metrics_are_cut_back_to_a_step(folder: Path) -> None:
    lines = read_metrics(folder)
    assert {line.step for line in lines} == {10, 20}
    cut_metrics(folder, 10)
    assert read_metrics(folder) == [line for line in lines if line.step == 10]
    cut_metrics(folder, 0)
    assert (folder / METRICS).read_text() == ""


def test_lines_of_all_kinds_are_read_as_written(tmp_path: Path) -> None:
    lines = [
        MetricLine(10, 0, loss={"state": 0.5, "recall": None}, accuracy={"state": 1.0}),
        MetricLine(10, 0, probe={"1": 0.75, "3": 0.5}),
        EventLine(10, 0, "switch", {"method": "dat", "loss": 0.01, "details": [1]}),
    ]
    write_metrics(tmp_path, lines)
    assert read_metrics(tmp_path) == lines


def test_loss_that_is_not_finite_is_kept(tmp_path: Path) -> None:
    write_metrics(tmp_path, [MetricLine(1, 0, loss={"state": math.nan, "recall": math.inf})])
    (line,) = read_metrics(tmp_path)
    assert isinstance(line, MetricLine)
    assert line.loss is not None
    assert math.isnan(line.loss["state"] or 0)
    assert line.loss["recall"] == math.inf


# ---- results.json and study.json ---------------------------------------------------------------

ROW = {"seed": 0, "variant": None, "length": 4, "multiple": 1, "exact": {"joint": 0.5}}


def test_results_by_hand_need_only_rows(tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text(json.dumps({"rows": [{"seed": 0, "length": 4, "multiple": 1}]}))
    results = read_results(tmp_path / RESULTS)
    assert results.rows == (
        {"seed": 0, "length": 4, "multiple": 1, "variant": None, "exact": None},
    )
    assert (results.step, results.sequences) == (None, None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": 3, "rows": []}, "its format is 3"),
        ({}, "it has no rows"),
        ({"rows": 3}, "rows=3: expected a list"),
        ({"rows": [3]}, r"rows\[0\]=3: expected an object"),
        ({"rows": [ROW, {"seed": 0}]}, r"rows\[1\] has no length"),
        ({"rows": [{"length": 4, "multiple": 1}]}, r"rows\[0\] has no seed"),
        ({"rows": [ROW | {"exact": 3}]}, r"rows\[0\].exact=3: expected an object or null"),
        ({"rows": [ROW | {"exact": {"joint": "x"}}]}, r"rows\[0\].exact=.*: expected a number for"),
        ({"rows": [ROW | {"multiple": math.inf}]}, r"rows\[0\].multiple=inf: expected a finite"),
        (
            {"rows": [ROW | {"exact": {"joint": math.nan}}]},
            r"rows\[0\].exact.joint=nan: expected a",
        ),
        ({"rows": [ROW | {"exact": {"joint": 1.5}}]}, r"rows\[0\].exact.joint=1.5: expected a num"),
        ({"rows": [], "step": "x"}, 'step="x": expected a whole number or null'),
    ],
)
def test_damaged_results_are_named_by_file_and_field(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    (tmp_path / RESULTS).write_text(json.dumps(values))
    with pytest.raises(RunFolderError, match=rf"cannot read .*results\.json: {message}"):
        read_results(tmp_path / RESULTS)


CLAIM = {"text": "It holds", "arm": "dat", "multiple": 3}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": 3}, "its format is 3"),
        ({"title": 3}, "title=3: expected text"),
        ({"arms": [{"label": "x"}]}, r"arms\[0\] has no name"),
        (
            {"arms": [{"name": "../x"}]},
            r"arms\[0\]: arm name '../x' is not the name of a subfolder",
        ),
        ({"claims": [CLAIM | {"low": "a"}]}, r'claims\[0\].low="a": expected a number or null'),
        ({"claims": ["It holds"]}, r'claims\[0\]="It holds": expected an object'),
        ({"claims": [CLAIM | {"stated": "later"}]}, r"claims\[0\].stated: .*'later'"),
        ({"claims": [CLAIM | {"statistic": "median"}]}, r"claims\[0\].statistic: .*'median'"),
    ],
)
def test_damaged_study_is_named_by_file_and_field(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    (tmp_path / STUDY).write_text(json.dumps(values))
    with pytest.raises(RunFolderError, match=rf"cannot read .*study\.json: {message}"):
        read_study(tmp_path)
