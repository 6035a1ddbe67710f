"""A grid: a run for each combination of values, each with a folder of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outlast.errors import OutlastError
from outlast.methods import Method
from outlast.registry import Entry, methods
from outlast.runs.spec import RENAMED, RunSpec
from outlast.workflow.create import canonical
from outlast.workflow.grid import expand_grid
from tiny_runs import create, tiny

OUT = Path("out")


def expand(*axes: str, run: RunSpec | None = None) -> list[tuple[RunSpec, Path]]:
    return expand_grid(run or tiny(), axes, OUT)


def test_grid_is_every_combination_of_values() -> None:
    run = replace(canonical(tiny()), label="it")
    runs = expand("lr=0.001,2e-3", "weight_decay=0,0.1", run=run)
    assert [(r.settings.lr, r.settings.weight_decay) for r, _ in runs] == [
        (0.001, 0.0), (0.001, 0.1), (0.002, 0.0), (0.002, 0.1),
    ]  # fmt: skip
    assert runs[1][1] == OUT / "lr=0.001,weight_decay=0.1"
    assert runs[1][0].label == "it lr=0.001 weight_decay=0.1"
    assert replace(runs[2][0], settings=run.settings, label="it") == run


def test_comma_in_brackets_belongs_to_the_value() -> None:
    runs = expand("stop=never,success(accuracy=0.9, at=3), success(0.8,1)", "lr=0.1,0.2")
    stops = ["never", "success(accuracy=0.9, at=3)", "success(0.8, 1)"]
    assert [run.settings.stop for run, _ in runs[::2]] == stops
    assert runs[2][1] == OUT / "stop=success-accuracy=0.9-at=3,lr=0.1"


def test_methods_are_values_too() -> None:
    axes = ["lr=0.1,0.2", "method=none,dat(mode=freeze, switch=below(0.01)), dat + ema(0.9)"]
    runs = expand(*axes, run=replace(tiny(), label="it"))
    assert [run.methods for run, _ in runs[:3]] == [
        (), ("dat(mode=freeze, switch=below(0.01))",), ("dat", "ema(0.9)"),
    ]  # fmt: skip
    assert [run.settings.lr for run, _ in runs] == [0.1] * 3 + [0.2] * 3
    assert [folder.name for _, folder in runs[:3]] == [
        "lr=0.1,method=none",
        "lr=0.1,method=dat-mode=freeze-switch=below-0.01",
        "lr=0.1,method=dat+ema-0.9",
    ]
    assert runs[2][0].label == "it lr=0.1 method=dat + ema(0.9)"


def test_method_of_all_runs_stays_beside_a_grid_of_settings() -> None:
    assert {run.methods for run, _ in expand("lr=0.1,0.2", run=tiny("dat"))} == {("dat",)}


@pytest.mark.parametrize(
    ("old", "values"), [("clip", "0.5,2.0"), ("probe", "5,15"), ("checkpoint", "5,15")]
)
def test_axis_takes_a_setting_by_its_old_name(old: str, values: str) -> None:
    new = RENAMED[old]
    runs = expand(f"{old}={values}")
    assert [str(getattr(run.settings, new)) for run, _ in runs] == values.split(",")
    assert [folder.name for _, folder in runs] == [f"{new}={v}" for v in values.split(",")]


class Named(Method):
    """Takes numbers, or a text."""

    def __init__(self, what: tuple[int, ...] | str = "") -> None:
        self.what = what


def test_names_of_folders_are_safe_and_different(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(methods._entries, "named", Entry("named", Named, "the test"))
    runs = expand("""method=named("../up, (or, down"),named('a "b" + c'),named("~$x|é")""")
    assert [run.methods for run, _ in runs] == [
        ('named("../up, (or, down")',), ("named('a \"b\" + c')",), ('named("~$x|é")',),
    ]  # fmt: skip
    names = ("method=named-..-up-or-down", "method=named-ab+c", "method=named-x-é")
    assert [folder for _, folder in runs] == [OUT / name for name in names]
    # two runs never share a folder
    with pytest.raises(OutlastError, match=r"names of folders: method=named-ab is twice"):
        expand('method=named("ab"),named("a b")')
    with pytest.raises(OutlastError, match=r"different values: method=named\(\[1\]\) is twice"):
        expand("method=named(1),named([1])")


MANY_VALUES = ["lr=" + ",".join(map(str, range(1, 1_000_001)))]
TWO_AXES = ["lr=" + ",".join(map(str, range(1, 144))), "warmup=1,2,3,4,5,6,7"]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (["lr"], "grid=lr: expected a setting and different values"),
        (["lr=0.1,"], "grid=lr=0.1,: expected a setting and different values"),
        (["lr=0.1,0.1"], "expected a setting and different values"),
        (["rl=0.1,0.2"], "grid=rl=0.1,0.2: expected a setting that may differ.*mean 'lr'"),
        (["batch_size=8,16"], "grid=batch_size=8,16: expected a setting that may differ"),
        (["lr=0.1", "lr=0.2"], "lr is given twice: --grid lr=0.1 and --grid lr=0.2; give it once"),
        (["warmup=1", "lr=0.1", "lr=0.2"], "lr is given twice: --grid lr=0.1 and --grid lr=0.2"),
        (
            ["clip=1", "max_grad_norm=2"],
            "max_grad_norm is given twice: .*=1 and --grid max_grad_norm=2",
        ),
        (["lr=0.001,1e-3"], "grid=lr=0.001,1e-3: expected different values: lr=1e-3 is twice"),
        (["lr=fast,0.1"], "settings: lr=fast: expected a number"),
        (["lr=0,0.1"], "lr=0.*: expected a number > 0"),
        (["stop=success(0.9,never"], r"cannot read the value 'success\(0.9,never'"),
        (["stop=success,success(0.999)"], r"different values: stop=success\(0.999\) is twice"),
        (["methods=dat,none"], "grid=methods=dat,none: expected .*, or method; did you.*'method'"),
        (["processes=1,2"], "grid=processes=1,2: expected a setting that may differ among runs"),
        (["method=dta,none"], "there is no method 'dta'; did you mean 'dat'"),
        (["lr=1,2", "method=none,dta"], "^grid: lr=1, method=dta: there is no method 'dta'"),
        (["warmup=1,2", "lr=1,abc"], "^grid: warmup=1, lr=abc: .*lr=abc: expected a number"),
        (["method=dat,none,dat"], "grid=method=dat,none,dat: expected .* different values"),
        (["method=dat,dat(mode=skip)"], r"different values: method=dat\(mode=skip\) is twice"),
        (["method=dat(mode=x),none"], "method dat: mode=x: expected skip"),
        (["method=dat(,none"], r"cannot read the spec 'dat\(,none'"),
        (["method=dat +,none"], r"grid: method=dat \+: expected methods joined by \+"),
        (["method=none + dat,dat"], r"grid: method=none \+ dat: expected methods joined by \+"),
        (["seeds=0,1"], "grid=seeds=0,1: expected a setting that may differ"),
        (MANY_VALUES, "^grid=lr=1,2,3,.*: expected at most 1,000 runs; this has 1,000,000$"),
        (TWO_AXES, "^grid=lr=1,2,3,.*: expected at most 1,000 runs; this has 1,001$"),
    ],
)
def test_error_names_what_is_wrong_with_an_axis(axes: list[str], message: str) -> None:
    with pytest.raises(OutlastError, match=message):
        expand(*axes)


@pytest.mark.parametrize(
    ("run", "axis", "message"),
    [
        (tiny(task="party"), "lr=0.1,0.2", "^there is no task 'party'"),
        (
            tiny("ema(0.9)"),
            "method=dat,none",
            r"^method is given twice: --method ema\(0.9\) and --grid method=\.\.\.; give it once",
        ),
    ],
    ids=["not the grid's fault", "methods outside a grid of methods"],
)
def test_error_names_what_is_wrong_with_the_run(run: RunSpec, axis: str, message: str) -> None:
    with pytest.raises(OutlastError, match=message):
        expand(axis, run=run)


def test_grid_is_refused_in_the_folder_of_a_run(tmp_path: Path) -> None:
    folder = create(tiny(), tmp_path / "run")
    with pytest.raises(OutlastError, match=r"out=.*run: expected a folder that is no run itself"):
        expand_grid(tiny(), ["lr=0.001,0.002"], folder)
