"""Some seeds of a run go on as a run of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_parking import break_rows

from outlast.cli import MISTAKE, main
from outlast.errors import OutlastError
from outlast.runs import (
    CHECKPOINT,
    METRICS,
    RESULTS,
    RUN,
    packs_of,
    read_metrics,
    read_run,
    run_folders,
    write_json,
)
from outlast.runs.checkpoint import load_checkpoint, save_checkpoint
from outlast.runs.spec import RunSpec
from outlast.workflow.create import create_runs
from outlast.workflow.subset import take_seeds
from tiny_runs import CPU, assert_same_run, create, resume, tiny

SEEDS = (3, 0, 7, 5)
METHODS: list[tuple[str, ...]] = [
    (),
    ("dat(switch=below(0.82), rewarm=3)", "ema(0.9)"),
    ("dat(switch=below(0.000001), latest=6, otherwise=retry)",),
    ("curriculum(from=2, by=loss, level=0.85)",),
]


def spec(*methods: str) -> RunSpec:
    return tiny(
        *methods, seeds=SEEDS, steps=24, steps_per_block=3, probe_every=6, checkpoint_every=12
    )


def stopped(folder: Path, run: RunSpec, step: int = 12) -> Path:
    """A run that was asked to leave at a step."""
    from outlast.train.session import canonical

    from outlast.train.trainer import Trainer

    create(run, folder)
    fleet = Trainer([(canonical(run), folder)], CPU)
    assert not fleet.train(stop=lambda: fleet.trainers[0].step >= step)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != ".lock"}


@pytest.mark.parametrize("methods", METHODS, ids=" + ".join)
def test_they_are_what_they_would_have_been(tmp_path: Path, methods: tuple[str, ...]) -> None:
    """To rounding: products over fewer seeds may be summed in another order."""
    whole = stopped(tmp_path / "whole", spec(*methods))
    before, chosen = files(whole), (7, 3)
    take_seeds(whole, chosen, tmp_path / "some")
    assert files(whole) == before
    assert resume(whole)
    assert resume(tmp_path / "some")
    assert read_run(tmp_path / "some")["seeds"] == [7, 3]

    (all_of, state), (own, own_state) = load_checkpoint(whole), load_checkpoint(tmp_path / "some")
    rows = [SEEDS.index(seed) for seed in chosen]
    for name, table in own.items():
        torch.testing.assert_close(table, all_of[name][rows], rtol=0, atol=5e-4, msg=name)
    assert own_state["averaged"] == [state["averaged"][row] for row in rows]
    lines, own_lines = read_metrics(whole), read_metrics(tmp_path / "some")
    for seed in chosen:
        one, two = ([x for x in of if x["seed"] == seed] for of in (lines, own_lines))
        assert [x for x in one if x["step"] <= 12] == [x for x in two if x["step"] <= 12]
        assert [(x["step"], x.get("event")) for x in one] == [
            (x["step"], x.get("event")) for x in two
        ]
    assert {x["seed"] for x in own_lines} == set(chosen)


@pytest.mark.parametrize("methods", METHODS[1:3], ids=" + ".join)
def test_all_of_them_are_the_run_bit_for_bit(tmp_path: Path, methods: tuple[str, ...]) -> None:
    whole = stopped(tmp_path / "whole", spec(*methods))
    take_seeds(whole, SEEDS, tmp_path / "all")
    assert resume(whole)
    assert resume(tmp_path / "all")
    assert_same_run(whole, tmp_path / "all")


def test_lines_past_the_checkpoint_are_not_taken(tmp_path: Path) -> None:
    whole = stopped(tmp_path / "whole", spec())
    with (whole / METRICS).open("a") as file:
        file.write('{"step": 15, "seed": 3, "loss": {}}\n')
    take_seeds(whole, (3,), tmp_path / "some")
    assert max(line["step"] for line in read_metrics(tmp_path / "some")) == 12


def test_before_the_first_checkpoint_they_begin_at_the_beginning(tmp_path: Path) -> None:
    create(spec(), tmp_path / "whole")
    take_seeds(tmp_path / "whole", (0,), tmp_path / "some")
    assert not (tmp_path / "some" / CHECKPOINT).exists()
    begin(
        tiny(seeds=(0,), steps=24, steps_per_block=3, probe_every=6, checkpoint_every=12),
        tmp_path / "alone",
        CPU,
    )
    assert resume(tmp_path / "some")
    assert resume(tmp_path / "alone")
    assert_same_run(tmp_path / "some", tmp_path / "alone")


def test_a_parked_seed_stays_parked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        break_rows(patch, {1: 5})
        whole = stopped(tmp_path / "whole", spec())
    take_seeds(whole, (7, 0), tmp_path / "some")
    assert resume(tmp_path / "some")
    assert load_checkpoint(tmp_path / "some")[1]["parked"] == [None, 3]
    with pytest.raises(OutlastError, match=r"seeds=0: expected at least one that is not parked"):
        take_seeds(whole, (0,), tmp_path / "none")


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ((3, 4), r"seeds=3,4: expected some of those that .*whole has: 3, 0, 7, 5"),
        ((), "seeds=: expected at least one"),
        ((3, 3), r"seeds=\[3, 3\]: expected different"),
    ],
)
def test_seeds_that_are_not_there(tmp_path: Path, seeds: tuple[int, ...], message: str) -> None:
    create(spec(), tmp_path / "whole")
    with pytest.raises(OutlastError, match=message):
        take_seeds(tmp_path / "whole", seeds, tmp_path / "some")
    assert not (tmp_path / "some").exists()


def test_a_checkpoint_from_before_it_named_its_run(tmp_path: Path) -> None:
    whole = stopped(tmp_path / "whole", spec())
    tensors, state = load_checkpoint(whole)
    save_checkpoint(whole, tensors, {n: value for n, value in state.items() if n != "run"})
    take_seeds(whole, (7, 3), tmp_path / "some")
    assert load_checkpoint(tmp_path / "some")[1]["run"] == {"seeds": [7, 3]}
    assert resume(tmp_path / "some")


def test_beside_the_runs_of_a_grid_they_stay_a_run_of_their_own(tmp_path: Path) -> None:
    names = ["b", "a"]
    create_runs([(spec(), tmp_path / name) for name in names], CPU, pack=names)
    for out in ("some", "others"):
        take_seeds(tmp_path / "a", (3,), tmp_path / out)
    found = [[tmp_path / name for name in names], [tmp_path / "others"], [tmp_path / "some"]]
    assert packs_of(run_folders(tmp_path)) == found
    for out in ("some", "others"):  # as they were made before: with the record of the whole run
        write_json(tmp_path / out / RUN, read_run(tmp_path / out) | {"pack": names})
    assert packs_of(run_folders(tmp_path)) == found


def test_a_folder_in_use_is_not_taken(tmp_path: Path) -> None:
    for name in ("whole", "other"):
        create(spec(), tmp_path / name)
    before = files(tmp_path / "other")
    for out in ("other", "whole"):
        with pytest.raises(OutlastError, match="holds a run already"):
            take_seeds(tmp_path / "whole", (3,), tmp_path / out)
    assert files(tmp_path / "other") == before


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = str(stopped(tmp_path / "whole", spec()))
    some = tmp_path / "some"
    other = str(stopped(tmp_path / "other", spec()))
    for bad, fault in (
        (["--seeds", "0"], "out=none: expected a new folder for --seeds 0"),
        (["--out", str(some)], f"seeds=none: expected those that are to go on in --out {some}"),
        ([whole, "--seeds", "0", "--out", str(some)], f"folder={whole} {whole}: expected diff"),
        ([other, "--seeds", "0", "--out", str(some)], f"folder={whole} {other}: expected one run"),
        ([other, "--seeds", "0"], f"folder={whole} {other}: expected one run"),
    ):
        assert main(["resume", whole, *bad]) == MISTAKE
        assert capsys.readouterr().err.startswith(f"error: {fault}")
    assert not some.exists()
    assert main(["resume", whole, "--seeds", "0", "--out", other]) == MISTAKE
    text = capsys.readouterr().err
    assert f"go on with 'outlast resume {other}' or choose another --out" in text
    assert "--overwrite" not in text
    assert main(["resume", whole, "--seeds", "0,5", "--out", str(some), "--device", "cpu"]) == 0
    assert "seeds 0, 5" in capsys.readouterr().out
    assert {r["seed"] for r in json.loads((some / RESULTS).read_text())["rows"]} == {0, 5}
