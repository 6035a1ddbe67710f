"""Seed s of S is seed s alone, and broken seeds change no sound one.

This holds for every registered mixer, scheme, weights and method. What else belongs to seeds as an
axis is in `tests/train/test_seeds.py`.
"""

from __future__ import annotations

from typing import Literal

import pytest
from subjects import ATTENTION, MIXERS, PLAIN_ATTENTION, ROW_BY_ROW, of

from outlast.registry import methods, mixers
from outlast.specs import parse
from outlast.testing.subjects import Subject, plain_lines
from outlast.testing.training import (
    check_broken_seeds,
    seed_trains_as_it_does_alone,
    seed_trains_with_it_as_it_does_alone,
)

#: a mixer by itself; those spelt in two ways once
ALONE = list({mixers.canonical(s.line): s for s in MIXERS}.values())
OTHERS = [subject for subject in ALONE if not subject.line.startswith("attention")]
#: methods that do something in the course of so few steps
METHODS = [
    "dat(switch=20, rewarm=20)",
    "dat(mode=freeze, switch=20, rewarm=20)",
    "dat(mode=ramp, switch=20, ramp=20)",
    "dat(mode=detach, switch=20)",
    "loss_order(switch=20)",
    "curriculum(from=2)",
    "ema(0.9)",
]
_LISTED = {parse(line).name for line in METHODS}
METHODS += [line for line in plain_lines(methods) if parse(line).name not in _LISTED]


@of(ALONE)
def test_seed_is_the_same_alone_with_every_mixer_scheme_and_weights(subject: Subject) -> None:
    seed_trains_as_it_does_alone(subject)


@of(METHODS)
def test_seed_is_the_same_alone_with_every_method(subject: str) -> None:
    seed_trains_with_it_as_it_does_alone(subject)


@of(OTHERS + ATTENTION)
@pytest.mark.parametrize("lengths", ["padded", "by length"])
def test_broken_seed_changes_no_other(
    subject: Subject, lengths: Literal["padded", "by length"]
) -> None:
    check_broken_seeds(f"{subject.line} @ {subject.width}", lengths == "by length")


@of([subject for subject in ROW_BY_ROW if subject.line in PLAIN_ATTENTION])
def test_broken_seed_changes_no_other_row_by_row(subject: Subject) -> None:
    with subject.setting():
        check_broken_seeds(f"{subject.line} @ {subject.width}", by_length=False)
