"""What a run is, as a record: bad values are named, and nothing is lost on the way to a file."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any

import pytest

from outlast.errors import SpecError
from outlast.runs.spec import RunSpec, Settings
from outlast.workflow.create import canonical

BAD: list[tuple[str, Any, str]] = [
    ("steps", 0, "a whole number >= 1"),
    ("steps", 1.5, "a whole number"),
    ("steps", True, "a whole number"),
    ("steps", "100", "a whole number"),
    ("batch", -1, "a whole number >= 1"),
    ("block", 0, "a whole number >= 1"),
    ("checkpoint", 0, "a whole number >= 1"),
    ("checkpoint", 75, "a multiple of steps_per_block=50"),
    ("probe", -50, "a number >= 0"),
    ("probe", 10, "a multiple of steps_per_block=50"),
    ("together", -1, "a number >= 0"),
    ("processes", -1, "a number >= 0"),
    ("processes", 1.5, "a whole number"),
    ("processes", "all", "a whole number"),
    ("stop", "always", "never or success"),
    ("stop", 0.9, "a word"),
    ("by_length", "maybe", "true | false"),
    ("warmup", -1, "a number >= 0"),
    ("lr", 0.0, "a number > 0"),
    ("lr", -1e-3, "a number > 0"),
    ("lr", math.inf, "a number > 0"),
    ("lr", math.nan, "a number > 0"),
    ("lr", "fast", "a number"),
    ("clip", 0.0, "a number > 0"),
    ("clip", None, "a number"),
    ("weight_decay", -0.1, "a number >= 0"),
    ("weight_decay", math.nan, "a number >= 0"),
    ("weight_decay", math.inf, "a number >= 0"),
    ("decay_from", 1.5, "a share of training from 0 to 1"),
    ("decay_from", math.nan, "a share of training from 0 to 1"),
    ("schedule", "linear", "constant-cosine | cosine | constant"),
    ("precision", "fp16", "auto | fp32 | tf32 | bf16"),
]


@pytest.mark.parametrize(("name", "value", "accepted"), BAD)
@pytest.mark.parametrize("way", ["call", "read"])
def test_a_bad_value_is_named(name: str, value: Any, accepted: str, way: str) -> None:
    with pytest.raises(SpecError) as caught:
        Settings(**{name: value}) if way == "call" else Settings.read({name: value})
    assert f"{name}=" in str(caught.value)
    assert f"expected {accepted}" in str(caught.value)


def test_every_setting_has_a_bad_value() -> None:
    assert {name for name, _, _ in BAD} == {f.name for f in fields(Settings)}


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(SpecError, match=r"settings have no 'learning_rate'"):
        Settings.read({"learning_rate": 0.1})
    with pytest.raises(SpecError, match=r"no 'warmpu'; did you mean 'warmup'\?"):
        Settings.read({"warmpu": 1})


# ---- learning rates, by hand -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "step", "share"),
    [
        # 100 steps, warm after 10
        ("constant", 0, 0.1),
        ("constant", 4, 0.5),
        ("constant", 9, 1.0),
        ("constant", 99, 1.0),
        ("constant-cosine", 0, 0.1),
        ("constant-cosine", 50, 1.0),
        ("constant-cosine", 59, 1.0),
        ("constant-cosine", 60, 1.0),
        ("constant-cosine", 80, 0.505),  # half way down: 0.01 + 0.99 / 2
        ("constant-cosine", 70, 0.01 + 0.99 * (1 + math.sqrt(0.5)) / 2),
        ("cosine", 9, 0.01 + 0.99 * (1 + math.cos(0.09 * math.pi)) / 2),
        ("cosine", 50, 0.505),
        ("cosine", 75, 0.01 + 0.99 * (1 - math.sqrt(0.5)) / 2),
    ],
)
def test_learning_rates(schedule: Any, step: int, share: float) -> None:
    settings = Settings(steps=100, lr=0.02, schedule=schedule, warmup=10, decay_from=0.6)
    assert settings.rate(step) == pytest.approx(0.02 * share)


def test_a_schedule_falls_to_a_hundredth_and_never_below() -> None:
    for schedule in ("cosine", "constant-cosine"):
        settings = Settings(steps=10_000, lr=1.0, schedule=schedule, warmup=0)
        assert settings.rate(0) == pytest.approx(1.0)
        assert settings.rate(9_999) == pytest.approx(0.01, rel=1e-4)
        assert all(0.01 <= settings.rate(s) <= 1.0 for s in range(0, 10_000, 97))


def test_nothing_falls_where_the_fall_begins_at_the_end() -> None:
    settings = Settings(steps=10, lr=1.0, warmup=0, decay_from=1.0)
    assert [settings.rate(s) for s in range(10)] == [1.0] * 10


# ---- there and back ----------------------------------------------------------------------------


def test_settings_survive_a_file() -> None:
    settings = Settings(
        steps=7, batch_size=3, lr=1 / 3, schedule="cosine", warmup=0, decay_from=0.1, max_grad_norm=0.3,
        weight_decay=0.0, precision="bf16", steps_per_block=5, probe_every=5, checkpoint_every=10, seeds_at_once=4,
        processes=2, stop="success(0.9, at=3)", by_length=True,
    )  # fmt: skip
    default = Settings()
    assert all(getattr(settings, f.name) != getattr(default, f.name) for f in fields(Settings))
    assert Settings.read(json.loads(json.dumps(vars(settings)))) == settings


def test_a_run_survives_a_file() -> None:
    run = canonical(
        RunSpec(
            "composite(modulus=3, queries=1)", "2 x (lstm > attention(alibi) | gru > mlp) @ 32",
            ("dat(phase1=weights(recall=0.1), switch=plateau(patience=7))", "ema(0.99)"),
            (3, 1, 4), Settings(steps=9, lr=0.1), "a label, ünïcode",
        )
    )  # fmt: skip
    assert RunSpec.read(json.loads(json.dumps(run.to_json()))) == run
    assert RunSpec.read(run.to_json()) == run
    assert canonical(run) == run


def test_what_is_left_out_is_written_out() -> None:
    run = canonical(RunSpec("parity", "lstm", ("dat",)))
    assert "length=" in run.task
    assert run.model == "lstm(init=default, forget_bias=none) @ 128, embedding=1.0"
    assert "mode=skip" in run.methods[0]
    assert "latest=" in run.methods[0]


@pytest.mark.parametrize("seeds", [(), (0, 0), (-1,), (1, 2, 1)])
def test_bad_seeds(seeds: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match="seeds="):
        RunSpec("parity", "lstm", seeds=seeds)


@pytest.mark.parametrize("changed", [{"schedule": "constant"}, {"decay_from": 1.0}], ids=str)
def test_past_its_end_a_schedule_that_never_falls_has_a_rate(changed: dict[str, Any]) -> None:
    """A run that is over is asked for it, where others go on beside it."""
    settings = Settings(steps=20, lr=0.02, warmup=1, **changed)
    assert settings.rate(20) == settings.rate(19) == 0.02
