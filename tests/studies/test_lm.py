"""The study of language models: its arms are of one size and differ in one thing."""

from __future__ import annotations

import pytest

from outlast.api import task as make_task
from outlast.specs import parse
from outlast.studies import Study
from outlast.studies.lm import SCHEMES
from outlast.studies.matching import size_of
from outlast.testing.studies import at_scale

SCALES = ("demo", "paper")


def study(scale: str) -> Study:
    return at_scale("lm", scale).study


@pytest.mark.parametrize("scale", SCALES)
def test_every_scheme_is_in_a_hybrid_and_in_a_transformer(scale: str) -> None:
    names = {arm.name for arm in study(scale).arms}
    ways = ("hybrid-{}", "hybrid-{}-dat", "hybrid-{}-frozen", "transformer-{}")
    assert names == {way.format(scheme) for way in ways for scheme in SCHEMES} | {"lstm", "gru"}
    assert {parse(text[0].split(",")[0]).name for text in SCHEMES.values()} == {
        "rope", "alibi", "forget", "stick_breaking", "tra"
    }  # fmt: skip


@pytest.mark.parametrize("scale", SCALES)
def test_arms_are_of_one_size(scale: str) -> None:
    arms = study(scale).arms
    built = make_task(arms[0].run.task)
    sizes = {arm.name: size_of(arm.run.model, built) for arm in arms}
    for name, size in sizes.items():
        assert size == pytest.approx(sizes["hybrid-rope"], rel=0.15), name


@pytest.mark.parametrize("scale", SCALES)
def test_ways_of_training_differ_in_the_method_alone(scale: str) -> None:
    arms = {arm.name: arm.run for arm in study(scale).arms}
    for scheme in SCHEMES:
        joint, dat, frozen = (arms[f"hybrid-{scheme}{way}"] for way in ("", "-dat", "-frozen"))
        assert joint.model == dat.model == frozen.model
        assert joint.settings == dat.settings == frozen.settings
        assert not joint.methods
        assert dict(parse(dat.methods[0]).kwargs)["phase1"] == "full"
        assert dict(parse(frozen.methods[0]).kwargs)["mode"] == "freeze"


def test_paper_scale_has_ten_seeds_and_tests_up_to_32_times_the_context() -> None:
    paper = study("paper")
    assert {arm.run.seeds for arm in paper.arms} == {tuple(range(10))}
    assert paper.ladder == (1, 2, 4, 8, 16, 32)
    assert make_task(paper.arms[0].run.task).lengths == (256, 256)
