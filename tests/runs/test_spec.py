"""What decides a run: bad values are named, and nothing is lost on the way to a file and back."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import SpecError
from outlast.runs.records import read_run
from outlast.runs.spec import RENAMED, RunSpec, Settings, Success, read_stop
from outlast.workflow.create import canonical
from tiny_runs import create, tiny

# ---- settings ----------------------------------------------------------------------------------

SIZE = "a number of size 1e-38 to 1e+38, or 0"
MOST = "a whole number up to 1,000,000,000,000"
BAD: list[tuple[str, Any, str]] = [
    ("steps", 0, "a whole number >= 1"),
    ("steps", 1.5, "a whole number"),
    ("steps", True, "a whole number"),
    ("steps", "100", "a whole number"),
    ("batch_size", -1, "a whole number >= 1"),
    ("steps_per_block", 0, "a whole number >= 1"),
    ("checkpoint_every", 0, "a whole number >= 1"),
    ("checkpoint_every", 75, "a multiple of steps_per_block=50"),
    ("probe_every", -50, "a number >= 0"),
    ("probe_every", 10, "a multiple of steps_per_block=50"),
    ("seeds_at_once", -1, "a number >= 0"),
    ("processes", -1, "a number >= 0"),
    ("processes", 1.5, "a whole number"),
    ("processes", "all", "a whole number"),
    ("stop", "always", "never or success"),
    ("stop", 0.9, "a word"),
    *(("keep_checkpoints", bad, "never, or every=") for bad in ("", "500", "every=0", "every=x")),
    ("keep_checkpoints", "every=75", "every= a multiple of steps_per_block=50"),
    ("by_length", "maybe", "true | false"),
    ("warmup", -1, "a number >= 0"),
    ("lr", 0.0, "a number > 0"),
    ("lr", -1e-3, "a number > 0"),
    ("lr", math.inf, SIZE),
    ("lr", math.nan, SIZE),
    ("lr", "fast", "a number"),
    ("max_grad_norm", 0.0, "a number > 0"),
    ("max_grad_norm", None, "a number"),
    ("weight_decay", -0.1, "a number >= 0"),
    ("weight_decay", math.nan, SIZE),
    ("weight_decay", math.inf, SIZE),
    ("decay_from", 1.5, "a share of training from 0 to 1"),
    ("decay_from", math.nan, SIZE),
    ("lr", 1e39, SIZE),
    ("lr", 1e-39, SIZE),
    ("lr", 10**400, MOST),
    ("max_grad_norm", -1e300, SIZE),
    ("steps", 10**30, MOST),
    ("steps", -(10**4000), MOST),
    ("batch_size", 2**63, MOST),
    ("steps_per_block", 10**13, MOST),
    ("checkpoint_every", 10**13, MOST),
    ("probe_every", 10**13, MOST),
    ("warmup", 10**13, MOST),
    ("seeds_at_once", 10**13, MOST),
    ("processes", 1025, "a number from 0 to 1,024"),
    ("schedule", "linear", "constant-cosine | cosine | constant"),
    ("precision", "fp16", "auto | fp32 | tf32 | bf16"),
]


@pytest.mark.parametrize(("name", "value", "accepted"), BAD)
@pytest.mark.parametrize("way", ["call", "read"])
def test_error_names_a_bad_setting(name: str, value: Any, accepted: str, way: str) -> None:
    with pytest.raises(SpecError) as caught:
        Settings(**{name: value}) if way == "call" else Settings.read({name: value})
    assert f"{name}=" in str(caught.value)
    assert f"expected {accepted}" in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "fitting"),
    [
        ({"keep_checkpoints": "every=10"}, 10),
        ({"keep_checkpoints": "every=75"}, 25),
        ({"probe_every": 10, "keep_checkpoints": "every=4"}, 2),
        ({"probe_every": 0, "checkpoint_every": 30}, 10),
        ({"steps_per_block": 100}, 50),
    ],
    ids=str,
)
def test_error_names_a_block_that_fits_all_settings(changed: dict[str, Any], fitting: int) -> None:
    words = f", or give --steps-per-block {fitting} (in Python steps_per_block={fitting})"
    with pytest.raises(SpecError) as caught:
        Settings(**changed)
    assert str(caught.value).endswith(words)
    Settings(**changed | {"steps_per_block": fitting})


def test_every_setting_has_a_bad_value() -> None:
    assert {name for name, _, _ in BAD} == {f.name for f in fields(Settings)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rate": 0.1}, "settings have no 'learning_rate'"),
        ({"warmpu": 1}, r"no 'warmpu'; did you mean 'warmup'\?"),
        ({"batch": 0}, "batch_size=0: expected a whole number >= 1"),
        ({"batch_size": 8, "batch": 4}, "batch_size is given twice: batch_size=8 and batch=4;"),
        ({"batch": 8, "batch_size": 4}, "batch_size is given twice: batch=8 and batch_size=4;"),
    ],
    ids=str,
)
def test_read_refuses_settings(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Settings.read(values)


OLD_NAMES = [
    ("batch", "batch_size", 64),
    ("clip", "max_grad_norm", 0.5),
    ("block", "steps_per_block", 25),
    ("probe", "probe_every", 500),
    ("checkpoint", "checkpoint_every", 1000),
    ("together", "seeds_at_once", 4),
]


@pytest.mark.parametrize(("old", "new", "value"), OLD_NAMES)
def test_read_takes_a_setting_by_its_old_name(old: str, new: str, value: Any) -> None:
    assert Settings.read({old: value}) == Settings(**{new: value}) != Settings()


def test_every_old_name_of_a_setting_is_tested() -> None:
    assert {old: new for old, new, _ in OLD_NAMES} == RENAMED


def test_settings_survive_a_file() -> None:
    settings = Settings(
        steps=7, batch_size=3, lr=1 / 3, schedule="cosine", warmup=0, decay_from=0.1,
        max_grad_norm=0.3, weight_decay=0.0, precision="bf16", steps_per_block=5, probe_every=5,
        checkpoint_every=10, seeds_at_once=4, processes=2, stop="success(0.9, at=3)",
        by_length=True, keep_checkpoints="every=5",
    )  # fmt: skip
    default = Settings()
    assert all(getattr(settings, f.name) != getattr(default, f.name) for f in fields(Settings))
    assert Settings.read(json.loads(json.dumps(asdict(settings)))) == settings


# ---- runs --------------------------------------------------------------------------------------


def test_run_survives_its_folder(tmp_path: Path) -> None:
    run = canonical(
        RunSpec(
            "composite(modulus=3, queries=1)", "2 x (lstm > attention(alibi) | gru > mlp) @ 32",
            ("dat(phase1=weights(recall=0.1), switch=plateau(patience=7))", "ema(0.99)"),
            (3, 1, 4), Settings(steps=9, lr=0.1), "a label, ünïcode",
        )
    )  # fmt: skip
    assert read_run(create(run, tmp_path / "run")).spec == run
    assert canonical(run) == run


def test_canonical_run_has_its_defaults_written_out() -> None:
    run = canonical(RunSpec("parity", "lstm", ("dat",)))
    assert "length=" in run.task
    line = "lstm(init=default, forget_bias=none, input_bias=none) @ 128, embedding=1.0"
    assert run.model == line
    assert "mode=skip" in run.methods[0]
    assert "latest=" in run.methods[0]


@pytest.mark.parametrize("seeds", [(), (0, 0), (-1,), (1, 2, 1)])
def test_error_names_bad_seeds(seeds: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match="seeds="):
        RunSpec("parity", "lstm", seeds=seeds)


def test_canonical_refuses_a_method_given_twice() -> None:
    with pytest.raises(
        SpecError, match=r"method dat is given twice: dat and dat\(mode=ramp\); give it once"
    ):
        canonical(tiny("dat", "dat(mode=ramp)"))


# ---- when a seed is done before its last step --------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("never", None),
        ("success", Success()),
        ("success(0.9)", Success(0.9)),
        ("success(at=3, accuracy=1, probes=5)", Success(1.0, 3, 5)),
    ],
)
def test_stop_is_read_as_a_spec(text: str, rule: Success | None) -> None:
    assert read_stop(text) == rule
    full = canonical(tiny(stop=text)).settings.stop
    assert read_stop(full) == rule
    assert full == (str(rule) if rule else "never")


def test_stop_is_never_by_default_and_in_older_records() -> None:
    assert Settings().stop == "never"
    assert Settings.read({}).stop == "never"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "stop=: expected never or success; cannot read"),
        ("0.9", "stop=0.9: expected never or success; cannot read"),
        ("sucess", r"stop=sucess: expected never or success; did you mean 'success'"),
        ("never(1)", r"stop=never\(1\): expected never or success"),
        ("success(level=1)", r"stop=success\(level=1\): expected success\(accuracy, at, probes\)"),
        ("success(0.0)", r"stop: accuracy=0.0: expected a share of sequences > 0"),
        ("success(1.1)", r"stop: accuracy=1.1: expected a share"),
        ("success(much)", r"stop: accuracy=much: expected a number"),
        ("success(at=2)", r"stop: at=2: expected a multiple that is probed, 1 or 3"),
        ("success(probes=0)", r"stop: probes=0: expected a whole number >= 1"),
    ],
)
def test_error_names_a_bad_stop(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Settings(stop=text)


def test_stop_is_refused_where_its_length_is_not_probed(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="stop=success cannot be combined with probe_every=0"):
        Settings(stop="success", probe_every=0)
    short_task = "composite(modulus=2, keys=8, queries=2, length=4)"
    with pytest.raises(SpecError, match=r"stop: at=3: expected .*: the task ends at length 8"):
        create(tiny(task=short_task, stop="success(at=3)"), tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()
