"""The functions of `outlast`: what they refuse, and what they accept beside lines and numbers."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import outlast
from outlast.errors import OutlastError, RunFolderError
from outlast.registry import methods
from outlast.runs.folder import RESULTS, RUN
from outlast.runs.records import Results, read_run, write_results
from outlast.specs import Spec, parse_layout
from outlast.tasks.parity import Parity
from tiny_runs import create, tiny

PARITY = "parity(length=4)"
LSTM = "lstm @ 4"
FEW: dict[str, Any] = {
    "steps": 2,
    "steps_per_block": 1,
    "checkpoint_every": 1,
    "probe_every": 0,
    "batch_size": 2,
    "warmup": 0,
    "seeds": [0],
    "device": "cpu",
}
LONG = "a" * 5000


def zeros(tokens: torch.Tensor) -> torch.Tensor:
    return torch.zeros(*tokens.shape, 2)


def fit(**changed: Any) -> Any:
    arguments = {"task": PARITY, "model": LSTM, "out": "run", **FEW, **changed}
    return outlast.fit(**arguments)


def evaluate(model: Any = zeros, task: Any = PARITY, **options: Any) -> Any:
    return outlast.evaluate(model, task, **{"ladder": (1,), "sequences": 4, **options})


# ---- misuse ------------------------------------------------------------------------------------

#: each call and words of its error: the argument, the value, what is accepted
MISUSES: list[tuple[Callable[[], Any], tuple[str, ...]]] = [
    (lambda: outlast.task(None), ("spec=None", "a task's line")),  # type: ignore[arg-type]
    (lambda: outlast.task(7), ("spec=7 (int)", "a task's line")),  # type: ignore[arg-type]
    (lambda: outlast.task(["parity"]), ("spec=['parity'] (list)",)),  # type: ignore[arg-type]
    (lambda: outlast.task(b"parity"), ("spec=b'parity'",)),  # type: ignore[arg-type]
    (lambda: outlast.task(math.nan), ("spec=nan (float)",)),  # type: ignore[arg-type]
    (lambda: outlast.task(Parity), ("spec=<class",)),  # type: ignore[arg-type]
    (lambda: outlast.task(""), ("cannot read the spec ''",)),
    (lambda: outlast.task("Parity"), ("there is no task 'Parity'", "did you mean 'parity'")),
    (
        lambda: outlast.fit(PARITY, LSTM, "run", method="dat"),
        ("'method'", "did you mean 'methods'"),
    ),
    (lambda: outlast.task("party"), ("there is no task 'party'", "did you mean 'parity'")),
    (lambda: outlast.task("parity(length=-1)"), ("length=-1", "a whole number")),
    (lambda: outlast.model(None, PARITY), ("layout=None", "a model line")),  # type: ignore[arg-type]
    (lambda: outlast.model(4, PARITY), ("layout=4 (int)",)),  # type: ignore[arg-type]
    (lambda: outlast.model(b"lstm", PARITY), ("layout=b'lstm'",)),  # type: ignore[arg-type]
    (lambda: outlast.model(["lstm"], PARITY), ("layout=['lstm'] (list)",)),  # type: ignore[arg-type]
    (lambda: outlast.model("lsmt", PARITY), ("no mixer or preset 'lsmt'", "'lstm'")),
    (lambda: outlast.model(LSTM, None), ("task=None", "a task or its line")),  # type: ignore[arg-type]
    (lambda: outlast.model(LSTM, 10), ("task=10 (int)",)),  # type: ignore[arg-type]
    (lambda: outlast.model(LSTM, "party"), ("there is no task 'party'",)),
    (lambda: outlast.model(LSTM, PARITY, seed=-1), ("seed=-1", "from 0 to 18446744073709551615")),
    (lambda: outlast.model(LSTM, PARITY, seed=2**64), ("seed=18446744073709551616",)),
    (lambda: outlast.model(LSTM, PARITY, seed=10**5000), ("seed=", "a whole number")),
    (lambda: outlast.model(LSTM, PARITY, seed=1.5), ("seed=1.5 (float)",)),  # type: ignore[arg-type]
    (lambda: outlast.model(LSTM, PARITY, seed="0"), ("seed='0'", "whole")),  # type: ignore[arg-type]
    (lambda: outlast.model(LSTM, PARITY, seed=True), ("seed=True", "a whole number")),
    (lambda: evaluate(None), ("model=None", "a module, or a function")),
    (lambda: evaluate(torch.nn.Linear), ("model=<class", "a module, or a function")),
    (lambda: evaluate(LSTM), ("model='lstm @ 4'", "a module, or a function")),
    (lambda: evaluate(zeros, None), ("task=None", "a task or its line")),
    (lambda: evaluate(zeros, 3), ("task=3 (int)",)),
    (lambda: evaluate(zeros, b"parity"), ("task=b'parity'",)),
    (lambda: evaluate(ladder=None), ("ladder=None", "a list of multiples")),
    (lambda: evaluate(ladder=3), ("ladder=3 (int)", "a list of multiples")),
    (lambda: evaluate(ladder="1 3"), ("ladder='1 3'", "a list of multiples")),
    (lambda: evaluate(ladder=b"13"), ("ladder=b'13'",)),
    (lambda: evaluate(ladder=np.array(3.0)), ("ladder=array(3.) (ndarray)",)),
    (lambda: evaluate(ladder=itertools.count(1)), ("ladder=count(1)",)),
    (lambda: evaluate(ladder=torch.nested.nested_tensor([torch.ones(1)])), ("ladder=nested",)),
    (lambda: evaluate(ladder=[1, None]), ("ladder=[1, None] (list)",)),
    (lambda: evaluate(ladder=[math.nan]), ("ladder=nan", "multiples")),
    (lambda: evaluate(ladder=[10**400]), ("ladder=1000", "up to 1e+09")),
    (lambda: evaluate(ladder=[1e9]), ("length 4000000000", "GiB", "fewer sequences or shorter")),
    (lambda: evaluate(sequences=10**15), ("sequences=1000000000000000", "GiB")),
    (lambda: evaluate(sequences=10**400), ("sequences=1000", "a whole number from 1 to")),
    (lambda: evaluate(sequences=torch.tensor(3, device="meta")), ("sequences=tensor(...",)),
    (lambda: evaluate(sequences=torch.tensor(True)), ("sequences=tensor(True)",)),
    (lambda: evaluate(sequences=0), ("sequences=0", "a whole number from 1 to")),
    (lambda: evaluate(sequences=2.5), ("sequences=2.5 (float)",)),
    (lambda: evaluate(sequences="8"), ("sequences='8'",)),
    (lambda: evaluate(sequences="8"), ("sequences='8'",)),
    (lambda: evaluate(device="gpu"), ("device='gpu'", "a device that torch has here")),
    (lambda: evaluate(device=None), ("device=None",)),
    (lambda: evaluate(device="meta"), ("device='meta'",)),
    (lambda: evaluate(device="cuda:99"), ("device='cuda:99'",)),
    (lambda: evaluate(ceiling="many"), ("ceiling='many'", "a whole number >= 1")),
    (lambda: evaluate(ceiling=0), ("ceiling=0",)),
    (lambda: fit(task=None), ("task=None", "a task or its line")),
    (lambda: fit(task=7), ("task=7 (int)",)),
    (lambda: fit(task=Parity(length=4)), ("task=Parity (Parity)", "outlast.task(...) built")),
    (lambda: fit(model=None), ("model=None", "a model line")),
    (lambda: fit(model=outlast.model(LSTM, PARITY)), ("model=a built model", "its own weights")),
    (lambda: fit(model=torch.nn.Linear(2, 2)), ("model=Linear(", "a model line")),
    (lambda: fit(out=None), ("out=None", "a path")),
    (lambda: fit(out=3), ("out=3 (int)", "a path")),
    (lambda: fit(out=b"run"), ("out=b'run'", "a path")),
    (lambda: fit(out=""), ("out=''", "a path that is not empty")),
    (lambda: fit(out="a\0b"), (r"out='a\x00b'", "a path that can be used")),
    (lambda: fit(out=LONG), ("out='aaa", "a path that can be used", "too long")),
    (lambda: fit(out="\ud800"), ("out=", "a path that can be used")),
    (lambda: fit(preset=7), ("preset=7 (int)", "a whole training, such as reach")),
    (lambda: fit(preset="raech"), ("preset=raech", "a whole training; did you mean 'reach'?")),
    (lambda: fit(preset="serial"), ("preset=serial", "training: reach (serial is a model line")),
    (lambda: fit(preset="reach", batch=2), ("batch_size", "batch=2", "batch_size=2")),
    (lambda: fit(methods=7), ("methods=7 (int)",)),
    (lambda: fit(methods=["dat", 7]), ("methods=['dat', 7] (list)",)),
    (lambda: fit(methods=np.array(3)), ("methods=array(3) (ndarray)", "a method's line")),
    (lambda: fit(methods=torch.tensor(3)), ("methods=tensor(3) (Tensor)",)),
    (lambda: fit(methods=itertools.repeat("ema")), ("methods=repeat('ema')", "at most 100")),
    (lambda: fit(methods=b"dat"), ("methods=b'dat'",)),
    (lambda: fit(methods="dta"), ("there is no method 'dta'", "'dat'")),
    (lambda: fit(seeds=1.5), ("seeds=1.5", "different whole numbers >= 0")),
    (lambda: fit(seeds=3), ("seeds=3 (int)", "such as range(10)")),
    (lambda: fit(seeds=np.array(3)), ("seeds=array(3) (ndarray)",)),
    (lambda: fit(seeds=b"01"), ("seeds=b'01'",)),
    (lambda: fit(seeds=[]), ("seeds=", "at least one")),
    (lambda: fit(seeds=[0, 0]), ("seeds=[0, 0]", "different whole numbers")),
    (lambda: fit(seeds=[0, -1]), ("seeds=-1: expected a whole number",)),
    (lambda: fit(seeds=[0, 1.0]), ("seeds=1.0 (float)",)),
    (lambda: fit(seeds=[True]), ("seeds=True",)),
    (lambda: fit(seeds=["0"]), ("seeds='0'",)),
    (lambda: fit(seeds=[None]), ("seeds=None",)),
    (lambda: fit(seeds=[2**64]), ("seeds=18446744073709551616: expected", "from 0 to")),
    (lambda: fit(seeds="none"), ("seeds=none", "numbers and ranges")),
    (lambda: fit(seeds=itertools.count()), ("seeds=count(", "at most 100,000")),
    (lambda: fit(seeds=range(10**12)), ("seeds=range(", "at most 100,000")),
    (lambda: fit(device=None), ("device=None", "auto | cpu | cuda")),
    (lambda: fit(device=0), ("device=0 (int)", "auto | cpu | cuda")),
    (lambda: fit(device="gpu"), ("device=gpu", "auto | cpu | cuda")),
    (lambda: fit(overwrite="yes"), ("overwrite='yes'", "True or False")),
    (lambda: fit(progress=2), ("progress=2 (int)", "True or False")),
    (lambda: fit(callbacks=[zeros]), ("callbacks=<function", "subclasses of outlast.Listener")),
    (lambda: fit(step=2), ("settings have no 'step'", "did you mean 'steps'")),
    (lambda: fit(steps=None), ("steps=none", "a whole number")),
    (lambda: fit(steps="many"), ("steps=many", "a whole number")),
    (lambda: fit(steps=2.5), ("steps=2.5", "a whole number")),
    (lambda: fit(steps=[2]), ("steps=[2] (list)", "a number")),
    (lambda: fit(precision=np.zeros(2)), ("precision=array(", "a word")),
    (lambda: fit(lr=math.nan), ("lr=nan", "a number of size")),
    (lambda: fit(lr=b"1"), ("lr=b'1'", "a number")),
    (lambda: fit(batch_size=10**12), ("batch_size=1000", "GiB")),
    (lambda: fit(batch_size=10**30), ("batch_size=1000", "a whole number up to")),
    (lambda: outlast.load(None), ("folder=None", "a path")),  # type: ignore[arg-type]
    (lambda: outlast.load(3), ("folder=3 (int)", "a path")),  # type: ignore[arg-type]
    (lambda: outlast.load(b"run"), ("folder=b'run'", "a path")),  # type: ignore[arg-type]
    (lambda: outlast.load(""), ("folder=''", "not empty")),
    (lambda: outlast.load("missing"), ("missing has no run.json",)),
    (lambda: outlast.load(LONG), ("folder='aaa", "too long")),
    (lambda: outlast.load("missing", seed="0"), ("seed='0'", "whole")),  # type: ignore[arg-type]
    (lambda: outlast.load("missing", seed=torch.ones(2)), ("seed=tensor(",)),  # type: ignore[arg-type]
    (lambda: outlast.load("missing", seed=-1), ("seed=-1: expected a whole number >= 0",)),
    (lambda: outlast.load("missing", seed=1.0), ("seed=1.0 (float)",)),  # type: ignore[arg-type]
    (lambda: outlast.report(None), ("folders=None", "a path, or a list")),  # type: ignore[arg-type]
    (lambda: outlast.report(3), ("folders=3 (int)",)),  # type: ignore[arg-type]
    (lambda: outlast.report(b"run"), ("folders=b'run'",)),  # type: ignore[arg-type]
    (lambda: outlast.report(np.array(3)), ("folders=array(3)", "a path, or a list")),  # type: ignore[arg-type]
    (lambda: outlast.report([b"run"]), ("folders=b'run'", "a path")),  # type: ignore[list-item]
    (lambda: outlast.report([None]), ("folders=None",)),  # type: ignore[list-item]
    (lambda: outlast.report([]), ("nothing to report on",)),
    (lambda: outlast.report(""), ("folders=''",)),
    (lambda: outlast.report("missing"), ("missing", "neither a run folder")),
    (lambda: outlast.report(LONG), ("folders='aaa", "too long")),
    (lambda: outlast.report("missing", out=3), ("missing", "neither")),  # type: ignore[arg-type]
    (lambda: outlast.results(None), ("folder=None", "a path")),  # type: ignore[call-overload]
    (lambda: outlast.results(3), ("folder=3 (int)", "a path")),  # type: ignore[call-overload]
    (lambda: outlast.results(["run"]), ("folder=['run'] (list)",)),  # type: ignore[call-overload]
    (lambda: outlast.results(""), ("folder=''",)),
    (lambda: outlast.results("missing"), ("missing does not exist: expected the folder of a run",)),
    (lambda: outlast.results(LONG), ("folder='aaa", "too long")),
    (lambda: outlast.results("missing", as_frame=1), ("as_frame=1 (int)",)),  # type: ignore[call-overload]
]


@pytest.mark.parametrize(
    ("call", "words"),
    MISUSES,
    ids=[f"{i}: {words[0]}"[:40] for i, (_, words) in enumerate(MISUSES)],
)
def test_misuse_is_an_error_that_names_the_argument_and_leaves_nothing(
    call: Callable[[], Any],
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutlastError) as error:
        call()
    for piece in words:
        assert piece in str(error.value)
    assert len(str(error.value)) < 500
    assert list(tmp_path.iterdir()) == []


# ---- what is accepted ----------------------------------------------------------------------------


def test_representation_of_a_task_is_its_line() -> None:
    assert repr(outlast.task("parity(length=4)")) == "parity(length=4)"
    assert repr(outlast.task("parity")) == "parity"
    assert repr(Parity(length=4)) == "Parity"


def test_objects_stand_for_their_lines() -> None:
    task = outlast.task(PARITY)
    assert outlast.task(task) is task
    assert repr(outlast.task(Spec("parity", (), (("length", 4),)))) == PARITY
    one = outlast.model(parse_layout(LSTM), task, seed=3).state_dict()
    other = outlast.model(LSTM, PARITY, seed=np.uint8(3)).state_dict()  # type: ignore[arg-type]
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_fit_takes_objects_and_numbers_of_numpy_and_stores_plain_ones(tmp_path: Path) -> None:
    options = FEW | {"seeds": np.array([3, 5]), "steps": np.int32(2), "lr": np.float64(0.01)}
    rows = outlast.fit(
        outlast.task(PARITY),
        parse_layout("lstm > attention(heads=1) @ 4"),
        tmp_path / "objects",
        methods.build("dat(switch=1)"),
        **options | {"device": torch.device("cpu")},
    )
    assert {type(row["seed"]) for row in rows} == {int}
    record = read_run(tmp_path / "objects")
    assert (record.seeds, record.settings.steps, record.settings.lr) == ((3, 5), 2, 0.01)
    line = "lstm > attention(heads=1) @ 4"
    lines = FEW | {"seeds": "3,5", "lr": 0.01}
    assert outlast.fit(PARITY, line, str(tmp_path / "lines"), "dat(switch=1)", **lines) == rows
    other = read_run(tmp_path / "lines")
    assert other.spec.identity == record.spec.identity
    assert outlast.load(str(tmp_path / "objects"), np.int64(5)).size == record.parameters  # type: ignore[arg-type]


def test_evaluate_takes_numbers_of_numpy() -> None:
    ladder = np.array([1, 2], dtype=np.float32)
    rows = evaluate(ladder=ladder, sequences=np.int64(4), ceiling=np.int16(7))
    assert rows == evaluate(ladder=(1, 2), sequences=4, ceiling=7)
    assert {type(row["multiple"]) for row in rows} == {float}
    assert {type(row["length"]) for row in rows} == {int}


# ---- results -------------------------------------------------------------------------------------


def run_with_results(folder: Path, share: float) -> Path:
    """A run folder with results written by hand."""
    create(tiny(), folder)
    row: Any = {"seed": 0, "variant": None, "length": 4, "multiple": 1.0}
    right = {"exact": {"joint": share}, "answers": {"state": 1.0}}
    untestable = {"exact": None, "answers": None, "reason": "too long"}
    rows = (row | right, row | {"multiple": 9.0} | untestable)
    write_results(folder / RESULTS, Results(rows=rows))
    return folder


def test_results_of_a_run_are_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_with_results(tmp_path / "one", 0.5)
    first, second = outlast.results(folder)
    assert (first["run"], first["seed"], first["exact"]) == ("one", 0, {"joint": 0.5})
    assert (second["multiple"], second["exact"], second["reason"]) == (9.0, None, "too long")
    monkeypatch.chdir(folder)
    assert outlast.results(".")[0]["run"] == "one"


def test_results_of_a_grid_and_a_study_are_those_of_their_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, share in (("a", 0.25), ("b", 0.75)):
        run_with_results(tmp_path / name, share)
    create(tiny(), tmp_path / "c")
    expected = [("a", 1.0), ("a", 9.0), ("b", 1.0), ("b", 9.0)]
    assert [(row["run"], row["multiple"]) for row in outlast.results(tmp_path)] == expected
    assert "not tested yet, so left out: c" in caplog.text
    (tmp_path / "study.json").write_text('{"arms": [{"name": "b"}, {"name": "not begun"}]}')
    assert [(row["run"], row["multiple"]) for row in outlast.results(tmp_path)] == expected[2:]


def test_results_refuse_a_run_that_is_not_tested(tmp_path: Path) -> None:
    create(tiny(), tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"run has no results\.json: it is not tested yet"):
        outlast.results(tmp_path / "run")
    with pytest.raises(RunFolderError, match="not tested yet"):
        outlast.results(tmp_path)
    (tmp_path / "run" / RUN).unlink()
    with pytest.raises(RunFolderError, match="not a run folder"):
        outlast.results(tmp_path / "run")


def test_results_as_a_frame_have_a_column_for_each_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pandas = ModuleType("pandas")
    pandas.DataFrame = lambda rows: ("a frame", rows)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    kind, (first, second) = outlast.results(run_with_results(tmp_path / "run", 0.5), as_frame=True)
    assert kind == "a frame"
    assert first == {
        "run": "run", "seed": 0, "variant": None, "length": 4, "multiple": 1.0,
        "exact_joint": 0.5, "answers_state": 1.0,
    }  # fmt: skip
    assert second["reason"] == "too long"
    assert "exact_joint" not in second


def test_frame_without_pandas_is_an_error_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(OutlastError, match=r"as_frame=True.*pip install pandas"):
        outlast.results(run_with_results(tmp_path / "run", 0.5), as_frame=True)


def test_results_as_a_frame_of_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    frame = outlast.results(run_with_results(tmp_path / "run", 0.5), as_frame=True)
    assert frame["exact_joint"].tolist()[0] == 0.5
    assert math.isnan(frame["exact_joint"].tolist()[1])


# ---- report --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_figures")
def test_report_takes_one_path_and_writes_into_it(tmp_path: Path) -> None:
    folder = run_with_results(tmp_path / "run", 0.5)
    page = outlast.report(str(folder))
    assert page == folder / "report" / "index.html"
    assert page.is_file()
    several = outlast.report([folder, str(folder)], str(tmp_path / "page"))
    assert several == tmp_path / "page" / "index.html"
    with pytest.raises(OutlastError, match="out=3"):
        outlast.report(folder, out=3)  # type: ignore[arg-type]
    assert outlast.results(folder)[0]["exact"] == {"joint": 0.5}
