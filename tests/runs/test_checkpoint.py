"""Checkpoints: one that is damaged, cut short, foreign or of another run is never taken."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_folders import QUICK, RUN_SPEC, assert_refused
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from outlast.cli import MISTAKE, main
from outlast.errors import RunFolderError
from outlast.runs.checkpoint import (
    CHECKSUM,
    ROWS,
    STATE,
    _text_checksum,
    load_checkpoint,
    load_state,
    row_checksums,
)
from outlast.runs.folder import CHECKPOINT, RUN
from outlast.runs.spec import CHANGEABLE
from outlast.runs.status import finished
from outlast.workflow.load import load, open_run
from outlast.workflow.train import open_trainer
from tiny_runs import CPU, checkpoint, create, resume, tiny, trained

State = dict[str, Any]


def without(state: State, *names: str) -> State:
    return {name: value for name, value in state.items() if name not in names}


def nested(levels: int) -> str:
    return f"<{levels}>"  # `rewrite` puts brackets in its place, as json cannot write them


def rewrite(folder: Path, change: Callable[[State], Any], *dropped: str) -> None:
    """Change the header of a checkpoint, or drop tensors."""
    tensors = without(load_file(folder / CHECKPOINT), *dropped)
    state = change(json.loads(checkpoint(folder)[1]))
    text = json.dumps(state)
    for levels in (300, 1000):
        text = text.replace(f'"{nested(levels)}"', "[" * levels + "]" * levels)
    save_file(tensors, folder / CHECKPOINT, {"outlast": text})


def with_settings(**changed: Any) -> State:
    return {"settings": replace(RUN_SPEC.settings, **changed)}


@pytest.fixture
def three_seeds(tmp_path: Path) -> Path:
    return trained(tiny(seeds=(4, 7, 9), **QUICK), tmp_path / "three")


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.999])
def test_checkpoint_cut_short_is_refused(folder: Path, share: float) -> None:
    whole = (folder / CHECKPOINT).read_bytes()
    (folder / CHECKPOINT).write_bytes(whole[: int(len(whole) * share)])
    assert_refused(folder, "checkpoint.safetensors is damaged or cut short")
    with pytest.raises(RunFolderError, match="damaged or cut short"):
        finished(folder)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_bytes(os.urandom(5000)), "is damaged or cut short"),
        (lambda path: torch.save({"weights": torch.zeros(3)}, path), "is damaged or cut short"),
        (
            lambda path: save_file({"weights": torch.zeros(3)}, path),
            "is a safetensors file, but not a checkpoint of outlast",
        ),
    ],
    ids=["noise", "pickle", "safetensors of another program"],
)
def test_foreign_file_is_refused(
    folder: Path, write: Callable[[Path], object], message: str
) -> None:
    write(folder / CHECKPOINT)
    assert_refused(folder, rf"checkpoint\.safetensors {message}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state | {"format": 3}, "its format is 3; this version of outlast reads 1"),
        (lambda state: without(state, "format"), "its format is None"),
        (lambda state: [state], "is damaged or cut short: .*not a JSON object"),
        (lambda state: without(state, "step"), "cannot read .*checkpoint.* it has no step"),
        (lambda state: {"format": 1}, "cannot read .*checkpoint.* it has no step"),
        (
            lambda state: state | {"parked": 3},
            "cannot read .*checkpoint.* parked=3: expected a list",
        ),
        (
            lambda state: state | {"run": state["run"] | {"seeds": [5]}},
            r"another run: its seeds is \[5\], this run's is \[0\]",
        ),
        (
            lambda state: state | {"step": -1},
            "checkpoint.* step=-1: expected a whole",
        ),
        (lambda state: state | {"step": 10**300}, 'step="10*\\.\\.\\.: expected a whole number'),
        (lambda state: state | {"parked": []}, "parked: expected 1 entries, one for each seed"),
        (lambda state: state | {"parked": [99]}, "parked: expected steps up to 20"),
        (lambda state: state | {"streaks": ["x"]}, r'streaks\[0\]="x": expected a whole number'),
        (lambda state: state | {"averaged": [-1]}, "averaged: expected whole numbers >= 0"),
        (
            lambda state: state | {"methods": [[{}]]},
            "is of another run: it has 1 methods, this run has 0",
        ),
        (lambda state: state | {"run": {"settings": 3}}, "another run: its settings is 3"),
        (lambda state: state | {"run": {"settings": {"lr": 3}}}, "another run: its lr is 3"),
        (
            lambda state: {
                **{n: v * 2 for n, v in state.items() if isinstance(v, list)},
                **{n: v for n, v in state.items() if not isinstance(v, list)},
                "run": {},
            },
            "another run: it has 2 seeds, this run has 1",
        ),
        (
            lambda state: state | {"probe": nested(1000)},
            "damaged or cut short: .*nested too",
        ),
        (lambda state: state | {"probe": nested(300)}, "damaged or cut short: .*nested too"),
    ],
)
def test_damaged_header_is_refused_by_its_field(
    folder: Path, change: Callable[[State], Any], message: str
) -> None:
    rewrite(folder, change)
    assert_refused(folder, message)


def test_missing_tensor_is_named(folder: Path) -> None:
    rewrite(folder, lambda state: state, "weights.head.bias")
    message = "does not fit this run: weights.head.bias should be .*, found nothing"
    assert_refused(folder, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "lstm > attention(heads=4) > mlp @ 16"}, "another run: its model is lstm"),
        ({"task": "composite(modulus=2, keys=32, queries=3, length=4)"}, "its task is composite"),
        ({"seeds": (1,)}, r"its seeds is \[1\]"),
        ({"methods": ("ema(0.9)",)}, r"its methods is \['ema\(decay=0.9\)'\], this run's is \[\]"),
        (with_settings(lr=0.5), "its lr is 0.5, this run's is 0.002"),
        (with_settings(schedule="constant"), "its schedule is constant, this run's is constant-c"),
        (with_settings(weight_decay=0.5), "its weight_decay is 0.5, this run's is 0.01"),
        (with_settings(steps=10), "its steps is 10, this run's is 20"),
    ],
)
def test_checkpoint_of_another_run_is_refused(
    folder: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """Even where every shape fits, as with another number of heads."""
    other = trained(replace(RUN_SPEC, **change), tmp_path / "other")
    (folder / CHECKPOINT).write_bytes((other / CHECKPOINT).read_bytes())
    assert_refused(folder, message)
    with pytest.raises(RunFolderError, match=message):
        finished(folder)
    assert main(["eval", str(folder), "--device", "cpu"]) == MISTAKE


def test_settings_that_do_not_decide_the_run_may_change(folder: Path) -> None:
    record = json.loads((folder / RUN).read_text())
    changed = {"checkpoint_every": 20, "seeds_at_once": 1, "processes": 1}
    changed["keep_checkpoints"] = "every=20"
    assert changed.keys() == set(CHANGEABLE)
    (folder / RUN).write_text(json.dumps(record | {"settings": record["settings"] | changed}))
    assert finished(folder)
    assert resume(folder)
    assert load(folder)


# ---- flipped bits --------------------------------------------------------------------------------


def flip(path: Path, place: int, bit: int) -> None:
    with path.open("rb+") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))


def test_flipped_bit_anywhere_is_noticed(folder: Path) -> None:
    path, draw = folder / CHECKPOINT, random.Random(0)
    size = path.stat().st_size
    header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    places = [*range(8), *draw.sample(range(8, header), 150), *draw.sample(range(header, size), 50)]
    for place in places:
        bit = draw.randrange(8)
        flip(path, place, bit)
        with pytest.raises(RunFolderError, match=r"checkpoint\.safetensors"):
            load_checkpoint(folder)
        flip(path, place, bit)
    load_checkpoint(folder)


def test_flipped_bit_of_a_weight_is_refused_by_all_who_read_it(folder: Path) -> None:
    path = folder / CHECKPOINT
    tensors, _ = load_checkpoint(folder)
    saved = tensors["weights.head.weight"].numpy().tobytes()
    flip(path, path.read_bytes().index(saved) + 5, 3)
    assert_refused(folder, "damaged or cut short: weights.head.weight is not as it was saved; put")
    assert main(["eval", str(folder), "--device", "cpu"]) == MISTAKE


def test_seed_is_read_though_a_bit_of_another_is_flipped(three_seeds: Path) -> None:
    tensors, _ = load_checkpoint(three_seeds)
    row = tensors["weights.head.weight"][1].numpy().tobytes()
    flip(three_seeds / CHECKPOINT, (three_seeds / CHECKPOINT).read_bytes().index(row), 0)
    assert load(three_seeds, 4)
    with pytest.raises(RunFolderError, match=r"weights\.head\.weight is not as it was saved"):
        load(three_seeds, 7)


@pytest.mark.parametrize("shape", [(3,), (3, 0), (0, 5), (2, 1021), (2, 2500), (2, 3, 1021)])
@pytest.mark.parametrize("kind", [torch.float32, torch.int64, torch.bfloat16, torch.uint8])
def test_checksum_shows_each_changed_value_and_its_place(
    shape: tuple[int, ...], kind: torch.dtype
) -> None:
    tensor = torch.randint(100, shape, generator=torch.Generator().manual_seed(0)).to(kind)
    sums = row_checksums(tensor)
    assert row_checksums(tensor.clone()) == sums
    assert len(sums) == shape[0]
    flat = tensor.view(-1)
    for place in range(0, len(flat), 307):
        changed = tensor.clone()
        changed.view(-1)[place] += 64
        row = place // (len(flat) // shape[0])
        different = [i for i, new in enumerate(row_checksums(changed)) if new != sums[i]]
        assert different == [row]
    if len(flat) > 2048:  # blocks of a disk that change places
        moved = torch.cat([flat[1024:2048], flat[:1024], flat[2048:]]).view(shape)
        assert row_checksums(moved) != sums


@pytest.mark.parametrize("rows", ["7", '"x"', "[]", "null", '{"average": 1}', "[" * 5000])
def test_checksums_that_are_none_are_refused(folder: Path, rows: str) -> None:
    path = folder / CHECKPOINT
    with safe_open(path, "pt") as file:
        header = dict(file.metadata())
    header |= {ROWS: rows, CHECKSUM: _text_checksum(header[STATE], rows)}
    save_file(load_file(path), path, header)
    assert_refused(folder, "is damaged or cut short")


def test_checkpoint_without_checksums_and_settings_is_read(folder: Path) -> None:
    def before(state: State) -> State:
        return state | {"run": without(state["run"], "settings")}

    rewrite(folder, before)
    assert finished(folder)
    assert load(folder)
    assert resume(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"since": "x"}, r"methods\[0\]\[0\]\.since='x': expected int"),
        ({"trigger": 3}, r"methods\[0\]\[0\]\.trigger=3: expected dict"),
        ({"switched": "x"}, r"methods\[0\]\[0\]: "),
        (None, r"methods\[0\]\[0\] has no switched"),
    ],
)
def test_state_that_a_method_cannot_go_on_from_is_refused(
    tmp_path: Path, change: State | None, message: str
) -> None:
    folder = trained(replace(RUN_SPEC, methods=("dat(switch=10)",)), tmp_path / "run")

    def spoil(state: State) -> State:
        ((method,),) = state["methods"]
        return state | {"methods": [[{} if change is None else method | change]]}

    rewrite(folder, spoil)
    assert_refused(folder, f"cannot read .*checkpoint.*: {message}")


def test_run_without_a_checkpoint_cannot_be_loaded(tmp_path: Path) -> None:
    folder = create(RUN_SPEC, tmp_path / "run")
    ways = (lambda: open_run(folder, CPU), lambda: load(folder), lambda: load_checkpoint(folder))
    for attempt in ways:
        with pytest.raises(RunFolderError, match="nothing was saved there yet"):
            attempt()
    (folder / "results.json").touch()
    for attempt in ways:
        with pytest.raises(RunFolderError, match="the file is missing, as the run was tested"):
            attempt()


def test_format_1_from_before_seeds_could_be_parked_is_read(folder: Path) -> None:
    def older(state: State) -> State:
        kept = without(state, "parked", "succeeded", "streaks")
        return kept | {"format": 1, "probe": {"1": 0.5, "3": 0.25}}

    rewrite(folder, older)
    assert finished(folder)
    state = load_state(folder)
    assert (state.parked, state.succeeded, state.streaks) == ([None], [None], [0])
    with open_trainer([folder], CPU) as trainer:
        assert trainer.runs[0].progress(0.0).probe == {"1": 0.5, "3": 0.25}
    assert resume(folder)


def test_some_seeds_are_read_without_the_others(three_seeds: Path) -> None:
    whole, _ = load_checkpoint(three_seeds)
    for rows in ([1], [2, 0]):
        subset, _ = load_checkpoint(three_seeds, lambda name: name.startswith("weights."), rows)
        assert subset.keys() == {name for name in whole if name.startswith("weights.")}
        assert all(torch.equal(tensor, whole[name][rows]) for name, tensor in subset.items())
