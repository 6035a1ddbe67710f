"""The study `reach`: what is screened, what its arms share, and how an item of one's own joins."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Literal

import pytest

from outlast import registry
from outlast.errors import SpecError
from outlast.models.build import canonical_layout
from outlast.models.presets import find_preset
from outlast.registry import mixers
from outlast.runs.spec import RunSpec
from outlast.specs import Spec
from outlast.studies import Arm, Study
from outlast.studies.joining import is_recurrence, slug, with_item
from outlast.studies.reach import SLOW, VARIANTS, reach, recurrences
from outlast.workflow.create import canonical

RECIPE = RunSpec(
    "parity",
    "2 x (lstm > conv(kernel=2) > attention(heads=2, weights=scalable) > mlp) @ 32, head=2",
    ("dat(latest=0.2)",),
)


@cache
def full() -> Study:
    return reach("full")


def arms(study: Study, prefix: str = "") -> dict[str, Arm]:
    return {arm.name: arm for arm in study.arms if arm.name.startswith(prefix)}


# ---- the study ---------------------------------------------------------------------------------


def test_every_recurrence_is_screened_and_has_arms_on_both_tasks() -> None:
    assert {"lstm", "gru", "slstm", "mlstm", "deltanet", "mamba2", "minlstm"} <= set(recurrences())
    assert not is_recurrence("conv")
    assert not is_recurrence("attention")
    names = arms(full())
    default = {arm.name for arm in full().choose()}
    for name in recurrences():
        hybrids = {f"recurrence-{name}-dat", f"recurrence-{name}-joint"}
        assert {f"state-{name}", f"state-{name}-dat", f"state-{name}-joint"} <= names.keys()
        if name in SLOW:
            assert hybrids <= names.keys()
            assert f"candidate-{name}" in names
            assert not hybrids & default
            assert not any(name in candidate for candidate in full().candidates())
        else:
            assert name == "lstm" or f"candidate-{name}" in full().candidates()
            assert hybrids <= default
    alone = {f"state-{name}" for name in recurrences()} & default
    assert alone == {claim.arm for claim in full().claims if claim.arm.startswith("state-")}


def test_variants_of_a_recurrence_have_arms_and_names_of_their_own() -> None:
    named, candidates = arms(full()), full().candidates()
    default = {arm.name for arm in full().choose()}
    for item in VARIANTS:
        name, mixer = slug(item), item.partition("(")[0]
        assert {f"recurrence-{name}-dat", f"recurrence-{name}-joint"} <= default
        for prefix in ("candidate-{}", "recurrence-{}-dat", "state-{}", "state-{}-joint"):
            variant, plain = (named[prefix.format(each)].run.model for each in (name, mixer))
            # it is another model, in nothing but the recurrence
            assert canonical_layout(variant) != canonical_layout(plain), name
            layout = str(canonical_layout(variant)).replace(str(mixers.canonical(item)), mixer)
            assert canonical_layout(layout) == canonical_layout(plain), name
        assert f"candidate-{name}" in candidates
    for study in (reach("demo"), full()):
        assert len({arm.name for arm in study.arms}) == len(study.arms)
        assert "recurrence-lstm-dat" in arms(study)


def test_arms_that_go_far_are_the_preset_but_for_their_task() -> None:
    preset = find_preset(Spec("reach"))
    assert isinstance(preset, RunSpec)
    named = arms(full())
    lines = (named["far-separate"].run.task, preset.task)
    assert len({str(registry.tasks.canonical(line)) for line in lines}) == 1
    for name in ("separate", "interleaved", "chained", "repeat", "without-pool", "one-token"):
        arm = named[f"far-{name}"]
        # keys of one token need no convolution that reaches back to the first
        model = preset.model.replace("kernel=3", "kernel=2" if name == "one-token" else "kernel=3")
        assert canonical_layout(arm.run.model) == canonical_layout(model), name
        assert arm.run.methods == preset.methods, name
        assert arm.run.settings.steps == preset.settings.steps, name
        assert arm.run.seeds == tuple(range(10)), name
        built = registry.tasks.build(arm.run.task)
        assert built.ceiling is None or built.ceiling >= 400 * built.lengths[1], name
    built = registry.tasks.build(preset.task)
    assert built.ceiling >= 4000 * built.lengths[1]
    assert canonical_layout("reach") == canonical_layout(preset.model)


def test_task_without_a_state_is_trained_jointly() -> None:
    """Attention has nothing to wait for there, and DAT would leave it little time."""
    methods = {name: arm.run.methods for name, arm in arms(full(), "task-").items()}
    jointly = {
        "task-flipflop",
        "task-copy",
        "task-copy-pool",
        "task-addition",
        "task-addition-hints",
    }
    assert {name for name in methods if not methods[name]} == jointly
    assert arms(reach("demo"))["task-copy"].run.methods == ()


def test_candidates_other_than_pairs_differ_from_the_recipe_in_one_thing() -> None:
    recipe = arms(full())["layout-separate"].run
    for name, run in full().candidates().items():
        parallel = name.startswith("candidate-parallel")
        assert parallel or run.model == recipe.model or run.methods == recipe.methods, name
        assert run.seeds == (100, 101, 102, 103), name
        assert run.settings.steps == recipe.settings.steps // 2, name


def test_item_joins_the_screen_and_one_that_is_there_is_refused() -> None:
    study = reach("demo", ("attention(stick_breaking, heads=2)",))
    name = "candidate-with-attention-stick_breaking-heads-2"
    assert name in study.candidates()
    assert "attention(stick_breaking, heads=2)" in arms(study)[name].run.model
    with pytest.raises(SpecError, match=r"with=gru: the screen has it already, as candidate-gru"):
        reach("demo", ("gru",))
    with pytest.raises(SpecError, match=r"with=hadamard: the screen has it already"):
        reach("demo", ("hadamard", "hadamard"))


@pytest.mark.parametrize(("scale", "item"), [("demo", "mlstm"), ("full", "gru")])
def test_item_joins_that_has_arms_and_is_not_screened(
    scale: Literal["demo", "full"], item: str
) -> None:
    assert f"candidate-{item}" in arms(reach(scale))
    assert f"candidate-{item}" not in reach(scale).candidates()
    joined = reach(scale, (item,)).candidates()[f"candidate-with-{item}"]
    assert joined.model == arms(reach(scale))[f"candidate-{item}"].run.model


def test_arms_of_the_questions_are_the_short_recipe_but_for_what_they_ask() -> None:
    short = arms(full())["recurrence-lstm-dat"].run
    short = replace(short, model=str(canonical_layout(short.model)))
    assert "latest=0.4" in short.methods[0]
    asking = {"switch", "mode", "size", "pure", "steps", "entangled", "method"}
    questions = {name: arm for name, arm in arms(full()).items() if arm.group in asking}
    assert {arm.group for arm in questions.values()} == asking
    for name, arm in questions.items():
        run, group = replace(arm.run, model=str(canonical_layout(arm.run.model))), arm.group
        if group in ("switch", "mode"):
            assert (run.task, run.model) == (short.task, short.model), name
            assert run.methods != short.methods, name
        elif group in ("size", "pure", "steps"):
            assert run.model != short.model, name
        elif group == "method":
            assert (run.task, run.model) == (short.task, short.model), name
            assert len(run.methods) == 1, name
            assert not run.methods[0].startswith("dat"), name
        else:
            assert run.task != short.task, name
        assert group == "steps" or run.settings.steps == short.settings.steps, name
        assert run.seeds == tuple(range(10)), name
        assert canonical(run).task, name  # it can be made
    one, mixed = (arms(full())[f"steps-{name}"].run for name in ("of-one-length", "mixed"))
    assert replace(mixed.settings, by_length=True) == one.settings
    assert mixed.model == one.model


def test_demo_goes_far_with_the_small_preset() -> None:
    preset = find_preset(Spec("reach", (), (("size", "small"),)))
    assert isinstance(preset, RunSpec)
    for name in ("far-separate", "far-interleaved", "far-chained", "far-many-keys"):
        arm = arms(reach("demo"))[name]
        assert (arm.run.model, arm.run.methods) == (preset.model, preset.methods), name
        assert arm.run.settings == preset.settings, name
        assert max(arm.ladder or ()) == 400, name
        built = registry.tasks.build(arm.run.task)
        reached = 4000 if name == "far-many-keys" else 400
        assert built.ceiling >= reached * built.lengths[1], name
    task = arms(reach("demo"))["far-separate"].run.task
    assert len({str(registry.tasks.canonical(line)) for line in (task, preset.task)}) == 1


@pytest.mark.parametrize("scale", ["demo", "full"])
def test_temperature_begins_past_the_training_length(scale: Literal["demo", "full"]) -> None:
    arm = arms(reach(scale))["weights-temperature"]
    task = registry.tasks.build(arm.run.task)
    assert f"temperature({task.tokens(task.lengths[1])})" in arm.run.model


def test_arm_of_another_scale_is_named_as_such() -> None:
    with pytest.raises(
        SpecError, match=r"no such arm at this scale \(with --scale full there is\)"
    ):
        reach("demo").choose(["steps-*"])


# ---- items -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "model", "methods"),
    [
        ("gru", "2 x (gru > conv(kernel=2) > attention(heads=2, weights=scalable) > mlp)", None),
        ("conv(kernel=3)",
         "2 x (lstm > conv(kernel=3) > attention(heads=2, weights=scalable) > mlp)", None),
        ("glu", "2 x (lstm > conv(kernel=2) > attention(heads=2, weights=scalable) > glu)", None),
        ("attention(tra)", "2 x (lstm > conv(kernel=2) > attention(tra) > mlp)", None),
        ("alibi",
         "2 x (lstm > conv(kernel=2) > attention(alibi, heads=2, weights=scalable) > mlp)", None),
        ("tra", "2 x (lstm > conv(kernel=2) > attention(tra, heads=2) > mlp)", None),  # no weights
        ("weights=topk(4)",
         "2 x (lstm > conv(kernel=2) > attention(heads=2, weights=topk(4)) > mlp)", None),
        ("gru > attention", "gru > attention", None),
        ("ema", None, ("dat(latest=0.2)", "ema")),
        ("dat(mode=ramp)", None, ("dat(mode=ramp)",)),
        ("method=none", None, ()),
    ],
)  # fmt: skip
def test_item_takes_the_place_of_what_is_there_of_its_kind(
    item: str, model: str | None, methods: tuple[str, ...] | None
) -> None:
    run = with_item(RECIPE, item)
    line = RECIPE.model if model is None else f"{model} @ 32, head=2"
    assert str(canonical_layout(run.model)) == str(canonical_layout(line))
    assert run.methods == (RECIPE.methods if methods is None else methods)
    assert run.task == RECIPE.task


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ("gruu", r"with=gruu: there is no mixer, scheme, .* 'gruu'; did you mean 'gru'\?"),
        ("task=parity", r"expected mixer=, .* or model= before an item, not task="),
        ("topk(0)", r"topk.*0"),
        ("dat(mode=rmap)", r"mode=rmap: .*did you mean 'ramp'"),
        ("scheme=gru", r"there is no scheme 'gru'; there is one among the mixers"),
        ("2 x (gru", r"cannot read"),
    ],
)
def test_bad_item_is_a_clear_error(item: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem) as caught:
        with_item(RECIPE, item)
    assert f"with={item}" in str(caught.value)


def test_item_without_a_place_is_an_error() -> None:
    run = RunSpec("parity", "lstm > mlp @ 16")
    with pytest.raises(SpecError, match=r"has no attention whose place it could take"):
        with_item(run, "alibi")
    with pytest.raises(SpecError, match=r"has no convolution whose place"):
        with_item(run, "conv")


def test_name_of_two_kinds_needs_the_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mixers._entries, "alibi", mixers.entry("gru"))
    with pytest.raises(SpecError, match=r"write mixer=alibi or scheme=alibi"):
        with_item(RECIPE, "alibi")


def test_item_as_a_folder_name() -> None:
    assert slug("weights=topk(8)") == "topk-8"
    assert slug("2 x (gru > attention)") == "2-x-gru-attention"
