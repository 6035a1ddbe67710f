"""Which runs a sweep has: all combinations, or some of them, and none that is there twice."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.errors import OutlastError
from outlast.runs.spec import RunSpec
from outlast.sweep.candidates import find_candidates
from outlast.sweep.packs import cut_packs
from outlast.workflow.evaluate import Evaluation
from tiny_runs import tiny


def find(*axes: str, run: RunSpec | None = None, **options: Any) -> dict[str, RunSpec]:
    return find_candidates(run or tiny(), axes, **options)


def bare(**changed: Any) -> RunSpec:
    return tiny(task="", model="", **changed)


def test_every_kind_of_axis_is_crossed() -> None:
    runs = find(
        "task=parity(length=4),copy",
        "model=lstm @ 8, norm=rms,mlp @ 8",
        "method=none,ema(0.9)",
        "seeds=0-1,5",
        "batch_size=4,8",
        run=bare(),
    )
    assert len(runs) == 32
    name, run = next(iter(runs.items()))
    assert name == "task=parity-length=4,model=lstm-8-norm=rms,method=none,seeds=0-1,batch_size=4"
    assert (run.task, run.model, run.methods) == ("parity(length=4)", "lstm @ 8, norm=rms", ())
    assert (run.seeds, run.settings.batch_size) == ((0, 1), 4)
    last = list(runs.values())[-1]
    assert (last.task, last.model, last.methods) == ("copy", "mlp @ 8", ("ema(0.9)",))
    assert (last.seeds, last.settings.batch_size) == ((5,), 8)


def test_sweep_without_axes_is_one_run() -> None:
    assert list(find()) == ["run"]


def test_names_that_look_alike_or_are_long_end_in_a_hash() -> None:
    alike = list(find("model=lstm > mlp @ 8,lstm | mlp @ 8", run=tiny(model="")))
    assert len(set(alike)) == 2
    assert all(name.startswith("model=lstm-mlp-8-") for name in alike)
    long = " > ".join(["mlp"] * 80)
    (name,) = find(f"model={long} @ 8", run=tiny(model=""))
    assert len(name) == 120


def test_random_draws_different_runs_and_more_of_them_begin_with_the_same() -> None:
    axes = ("lr=log(1e-4, 1e-2)", "warmup=uniform(0, 20)", "method=none,dat(switch=10)")
    few, many, other = (find(*axes, random=n, search_seed=s) for n, s in ((5, 0), (9, 0), (5, 1)))
    assert list(many)[:5] == list(few)
    assert len(set(many)) == 9
    assert set(other) != set(few)
    assert all(1e-4 <= run.settings.lr <= 1e-2 for run in many.values())
    assert {type(run.settings.warmup) for run in many.values()} == {int}


def test_random_may_draw_the_whole_grid() -> None:
    assert len(find("lr=0.1,0.2,0.3", "warmup=1,2", random=6)) == 6


@pytest.mark.parametrize(
    ("axes", "options", "message"),
    [
        (["lr=" + ",".join(f"{i}e-4" for i in range(1, 101)),
          "seeds=" + ",".join(map(str, range(1000))),
          "warmup=" + ",".join(map(str, range(100)))], {}, "has 10,000,000. Give fewer"),
        (["lr=0.1,0.2"], {"most_runs": 1}, "at most 1 runs; this has 2"),
        (["lr=0.1,0.2"], {"random": 3}, "random=3: expected at most 2, all runs"),
        (["warmup=uniform(0, 2)"], {"random": 9}, "only 3 different ones"),
        (["lr=log(1e-4, 1e-2)"], {}, "single values, or --random"),
        (["lr=log(0, 1)"], {"random": 2}, "a range above 0"),
        (["lr=log(1e-4, 1e-2),0.1"], {"random": 2}, "0.1: expected single values, or a"),
        (["lr=uniform(1, 1)"], {"random": 2}, "low < high"),
        (["lr=0.001,1e-3"], {}, "lr=1e-3: expected different runs: it is the same as lr=0.001"),
        (["rl=1,2"], {}, "a setting.*did you mean 'lr'"),
        (["task=parity,copy"], {}, "task is given twice"),
        (["model=lstm,mlp"], {"run": bare(seeds=(0,))}, "task=none: expected --task"),
        (["method=dat,none"], {"run": tiny(model="mlp @ 8")}, "grid: method=dat: .*attention"),
        (["batch_size=0,8"], {}, "grid: batch_size=0: batch_size=0: expected"),
    ],
)  # fmt: skip
def test_bad_sweep_is_refused(axes: list[str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(OutlastError, match=message):
        find(*axes, **options)


def test_packs_hold_runs_of_one_kind_up_to_a_number_of_seeds() -> None:
    runs = find("model=lstm @ 8,gru @ 8", "lr=0.1,0.2,0.3", run=tiny(model="", seeds=(0, 1, 2)))
    packs = cut_packs(runs, Evaluation(), 6)
    assert [len(pack.runs) for pack in packs] == [2, 1, 2, 1]
    assert [pack.seeds for pack in packs] == [6, 3, 6, 3]
    assert [name for pack in packs for name in pack.names] == list(runs)
    assert len({pack.name for pack in packs}) == 4
    assert [len(pack.runs) for pack in cut_packs(runs, Evaluation(), 1)] == [1] * 6
