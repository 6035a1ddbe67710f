"""Every registered study at every scale is well-formed; `dat` and `tra` have the arms they must."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest

from outlast.analysis.runs import ANALYSES, OF_RUNS
from outlast.api import task as make_task
from outlast.errors import SpecError
from outlast.mixers.attention import Attention
from outlast.models import build_model
from outlast.registry import studies
from outlast.specs import Spec, parse
from outlast.studies import Study
from outlast.studies.base import scales
from outlast.studies.matching import matched, size_of
from outlast.testing.rules import Rule
from outlast.testing.studies import RULES, StudyAtScale, at_scale
from outlast.train.optimiser import learning_rate
from outlast.workflow.create import canonical


def make(name: str, scale: str) -> Study:
    return at_scale(name, scale).study


@cache
def size(model: str, task: str) -> int:
    return size_of(model, make_task(task))


ALL = [at_scale(name, scale) for name in studies.names() for scale in scales(name)]


@pytest.mark.parametrize("subject", ALL, ids=str)
@pytest.mark.parametrize("rule", list(RULES), ids=lambda rule: rule.name)
def test_study_conforms(subject: StudyAtScale, rule: Rule[StudyAtScale]) -> None:
    rule(subject)


def test_every_study_is_a_subject() -> None:
    assert {"dat", "phase1", "tra"} <= set(studies.names())
    assert {subject.name for subject in ALL} == set(studies.names())


def test_paper_scale_of_dat_has_ten_seeds() -> None:
    assert {a.run.seeds for a in make("dat", "paper").arms} == {tuple(range(10))}


@pytest.mark.parametrize("subject", ALL, ids=str)
def test_analyses_of_a_study_exist_and_can_be_made(subject: StudyAtScale) -> None:
    study = subject.study
    for analysis in study.analyses:
        assert analysis.name in ANALYSES
        kept = all(arm.run.settings.keep_checkpoints for arm in study.arms)
        assert kept or not (analysis.along or analysis.name in OF_RUNS)
        if analysis.toward is not None:
            assert any(arm.name.endswith(f"-{analysis.toward}") for arm in study.arms)


def test_why_makes_every_analysis() -> None:
    for scale in scales("why"):
        assert {analysis.name for analysis in make("why", scale).analyses} == set(ANALYSES)


# ---- choosing arms -----------------------------------------------------------------------------


def test_arms_are_chosen_by_name_and_pattern() -> None:
    study = make("dat", "paper")
    assert [a.name for a in study.choose(["lstm", "serial4-*"])][:2] == ["lstm", "serial4-joint"]
    twice = study.choose(["lstm", "l*", "lstm"])
    assert [a.name for a in twice] == ["lstm"]
    assert all(a.run.seeds == (7, 9) for a in study.choose(["*"], (7, 9)))
    assert all(a.run.settings.steps == 70 for a in study.choose(["*"], steps=70))
    assert [a.run.seeds for a in study.choose(["lstm"])] == [study.arms[-3].run.seeds]
    with pytest.raises(SpecError, match=r"arms=ltsm: no such arm; did you mean 'lstm'"):
        study.choose(["ltsm"])


# ---- the study of delayed attention ------------------------------------------------------------


@pytest.mark.parametrize(
    ("design", "blocks"), list(product(("serial", "parallel", "interleaved"), (2, 4)))
)
def test_paper_scale_of_dat_has_every_arm(design: str, blocks: int) -> None:
    study = make("dat", "paper")
    arms = [a for a in study.arms if a.name.startswith(f"{design}{blocks}-")]
    ways = set()
    for arm in arms:
        methods = [parse(method) for method in canonical(arm.run).methods]
        assert len(methods) <= 1
        details = dict(methods[0].kwargs) if methods else {}
        way = (methods[0].name, details.get("phase1"), details.get("mode")) if methods else "joint"
        ways.add(way)
    expected = {"joint", ("loss_order", "state", None)}
    expected |= {("dat", p, m) for p, m in product(("state", "full"), ("skip", "freeze", "ramp"))}
    assert ways == expected
    assert len({a.run.model for a in arms}) == 1
    assert len({a.run.settings for a in arms}) == 1


def test_models_of_dat_have_the_design_of_their_name() -> None:
    arms = {a.name: a.run.model for a in make("dat", "paper").arms}
    for blocks in (2, 4):
        assert "lstm > attention" in arms[f"serial{blocks}-joint"]
        assert "lstm | attention" in arms[f"parallel{blocks}-joint"]
        assert "lstm > mlp > lstm > mlp > attention" in arms[f"interleaved{blocks}-joint"]
    assert "attention" not in arms["lstm"]
    assert "lstm" not in arms["transformer"] + arms["transformer-rope"]
    assert "rope" in arms["transformer-rope"]
    assert "rope" not in arms["transformer"]


@pytest.mark.parametrize(
    ("scale", "like", "others"),
    [
        ("demo", "joint", ["dat", "control", "lstm", "transformer"]),
        (
            "paper", "serial4-joint",
            ["parallel4-joint", "interleaved4-joint", "lstm", "transformer", "transformer-rope"],
        ),
        ("paper", "serial2-joint", ["parallel2-joint", "interleaved2-joint"]),
    ],
)  # fmt: skip
def test_arms_that_are_compared_are_of_one_size(scale: str, like: str, others: list[str]) -> None:
    arms = {a.name: a.run for a in make("dat", scale).arms}
    expected = size(arms[like].model, arms[like].task)
    for other in others:
        assert arms[other].task == arms[like].task
        assert size(arms[other].model, arms[other].task) == pytest.approx(expected, rel=0.1), other


def test_matched_width_is_the_closest_one() -> None:
    spec = "composite(modulus=2, keys=32, queries=2, length=4)"
    task, like = make_task(spec), "2 x (lstm > attention > mlp) @ 48"
    target = size_of(like, task)
    width = int(matched("2 x (lstm > mlp)", like, spec, step=4).rpartition("@ ")[2])
    gaps = {
        w: abs(size_of(f"2 x (lstm > mlp) @ {w}", task) - target)
        for w in (width - 4, width, width + 4)
    }
    assert min(gaps, key=gaps.__getitem__) == width


def test_demo_of_dat_has_joint_training_delay_control_and_pure_models() -> None:
    arms = {a.name: canonical(a.run) for a in make("dat", "demo").arms}
    assert arms["joint"].methods == ()
    assert [parse(m).name for m in arms["dat"].methods] == ["dat"]
    assert [parse(m).name for m in arms["control"].methods] == ["loss_order"]
    assert len({arms[n].model for n in ("joint", "dat", "control")}) == 1
    assert "attention" not in arms["lstm"].model
    assert "lstm" not in arms["transformer"].model


# ---- the study of threshold relative attention -------------------------------------------------


@pytest.mark.parametrize("scale", ["demo", "paper"])
def test_tra_has_every_scheme_on_every_task(scale: str) -> None:
    study = make("tra", scale)
    by_group: dict[str, list[str]] = {}
    for arm in study.arms:
        by_group.setdefault(arm.group, []).append(arm.label)
    assert list(by_group) == ["flip-flop", "copy", "recall"]
    assert len({tuple(labels) for labels in by_group.values()}) == 1
    assert len({a.run.settings for a in study.arms}) == 1
    for group in by_group:
        runs = [canonical(a.run) for a in study.arms if a.group == group]
        assert len({run.task for run in runs}) == 1
        schemes = {_scheme(run.model) for run in runs}
        assert {
            ("tra", "softmax"), ("rope", "softmax"), ("alibi", "softmax"), ("nope", "softmax"),
            ("forget", "softmax"), ("cope", "softmax"), ("stick_breaking", "softmax"),
            ("rope", "scalable"), ("rope", "entmax"),
        } <= {(scheme.name, weights) for scheme, weights in schemes}  # fmt: skip
        assert len(schemes) == len(runs)


def _scheme(model: str) -> tuple[Spec, str]:
    """The scheme and the weights of the attention in a model line."""
    for mixer in build_model(model, 8, 8, seed=0).modules():
        if isinstance(mixer, Attention):
            return mixer.scheme.spec, mixer.weights.spec.name
    raise AssertionError(f"{model} has no attention")


def test_paper_scale_of_tra_has_the_authors_flip_flop() -> None:
    arm = next(a for a in make("tra", "paper").arms if a.name == "tra")
    assert size(arm.run.model, arm.run.task) == pytest.approx(2.64e6, rel=0.002)
    assert make_task(arm.run.task).lengths == (512, 512)
    settings = arm.run.settings
    assert (settings.steps, settings.batch_size, settings.lr) == (25_000, 64, 1e-4)
    assert learning_rate(settings, 0) == settings.lr  # no warm-up
    assert learning_rate(settings, settings.steps) == pytest.approx(0, abs=0.011 * settings.lr)


@pytest.mark.parametrize("scale", ["demo", "paper"])
def test_claims_of_tra_cover_all_three_variants_and_greater_lengths(scale: str) -> None:
    claims = {(c.variant, c.multiple) for c in make("tra", scale).claims if c.statistic == "min"}
    assert set(product((None, "sparse", "dense"), (1, 4))) <= claims
