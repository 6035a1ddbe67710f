"""`outlast reproduce reach`: one recipe for state and recall, as far as it goes.

The recipe is a serial hybrid of two blocks with delayed attention. A short convolution gives each
digit its key, which the first phase forgets. At `full` it stands before the LSTM in ``far-*`` and
``weights-*``, as in the preset, and behind it elsewhere. A scalable softmax keeps attention sharp
at length. Recipe, screen and arms are ours.

First a **screen**: parts of the recipe are replaced one at a time, by every registered recurrence,
and by some designs, weights, schemes and methods. A few pairs are added: a recurrence beside
attention, where no convolution stands between them. Successive halving by the joint accuracy at 10
times the training length finds the best, on seeds of its own. The survivors are then trained over
the seeds of the study. ``--with ITEM`` adds a candidate: see `outlast.studies.joining`.

Then the **arms**, by the group that their names begin with:

- ``layout-*``: the recipe and joint training on the three layouts of `composite`.
- ``far-*``: the preset, on rows up to 400 times the training length, by keys of two tokens.
  ``far-without-pool`` has no rows of keys that are easily confused, ``far-repeat`` has keys that
  come again, ``far-one-token`` has 10,240 keys of one token. At `demo` keys have one token, and
  ``far-many-keys`` has enough of them for 4,000 times the length.
- ``weights-*``: ``far-separate`` with other weights in its attention.
- ``task-*``: the recipe on other tasks. A sum modulo 2 is a parity; permutations of S5 come with
  recall and alone, those of S3 with recall; ``copy-pool`` has signs that are easily confused.
- ``recurrence-*``: every recurrence in the recipe, with DAT and jointly. Some have variants, as
  ``recurrence-deltanet-negative-false-dat``.
- ``state-*``: every recurrence on a sum alone, without attention, which has nothing to do there.
  ``state-*-dat`` and ``state-*-joint`` are the hybrids.
- ``outcome-*``: supervision by the outcome alone, without running sums.
- ``switch-*``, ``mode-*``, ``size-*``, ``entangled-*``, ``pure-*``, ``method-*``, ``steps-*``:
  open questions (`outlast.studies.reach_questions`). They are run if they are named. ``steps-*`` is
  at `full` alone.

``demo`` is of modulus 2 and width 64 and runs on a laptop in minutes. ``full`` wants a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from typing import Literal

from outlast.errors import SpecError
from outlast.models.presets import ORTHOGONAL
from outlast.models.presets import reach as reach_recipe
from outlast.registry import methods, mixers, studies
from outlast.runs.spec import RunSpec
from outlast.specs import parse
from outlast.studies.base import SCREEN, Arm, Screen, Study
from outlast.studies.joining import is_recurrence, with_item
from outlast.studies.reach_arms import (
    NEAR,
    Arguments,
    Plan,
    candidate_arms,
    changed,
    far_arms,
    layout_arms,
    outcome_arms,
    recurrence_arms,
    task_arms,
    weights_arms,
)
from outlast.studies.reach_claims import (
    JOINT,
    KEEPS,
    LAYOUTS,
    LOSES,
    full_claims,
    layout_claims,
)
from outlast.studies.reach_questions import question_arms, step_arms
from outlast.sweep.halving import Halving
from outlast.workflow.create import canonical

TITLE = "How far a recipe for state and recall reaches"
QUESTION = (
    "A hybrid is trained on short sequences that need a running sum and values under keys. Which "
    "design, recurrence, weights and method let it work on sequences up to 4,000 times as long?"
)

#: recurrences with other arguments than their defaults, which change what they can compute.
#: `hadamard` is no recurrence: it sees a few tokens and holds no state, so that it would take the
#: place of the convolution
VARIANTS = (
    "linear_attention(normaliser=inline)",
    "linear_attention(fixation=true)",
    "deltanet(negative=false)",
)


@studies.register("reach")
def reach(scale: Literal["demo", "full"] = "demo", with_: tuple[str, ...] = ()) -> Study:
    """One recipe for state and recall: screened against others, then taken as far as it goes.

    Args:
        scale: `demo` runs on a laptop in minutes, `full` wants a GPU.
        with_: Items that join the screen, each in the place of what the recipe has of its kind.
    """
    return _demo(with_) if scale == "demo" else _full(with_)


def recurrences() -> list[str]:
    """Every registered mixer that can hold a state, those of plug-ins too."""
    return [name for name in mixers.names() if is_recurrence(name)]


def _arms(plan: Plan, joining: Sequence[str]) -> list[Arm]:
    parts = (
        layout_arms(plan), candidate_arms(plan, joining), recurrence_arms(plan), task_arms(plan)
    )  # fmt: skip
    return [arm for part in parts for arm in part]


def _every_recurrence(first: str) -> tuple[str, ...]:
    """Every recurrence in the notation; that of the recipe stands for its mixer and comes first."""
    others = [name for name in recurrences() if name != parse(first).name]
    return (first, *others, *VARIANTS)


def _screened(arms: Sequence[Arm], patterns: Sequence[str]) -> tuple[str, ...]:
    """The recipe, joint training, and those candidates whose names fit one of these patterns."""
    base = ("layout-separate", "layout-separate-joint")
    fitting = [a for a in arms if a.name in base or any(fnmatch(a.name, p) for p in patterns)]
    runs: dict[RunSpec, str] = {}
    for arm in fitting:
        run = canonical(replace(arm.run, label=""))
        if run in runs and arm.name.startswith("candidate-with-"):
            item = arm.label.removeprefix("with ")
            raise SpecError(f"with={item}: the screen has it already, as {runs[run]}")
        runs[run] = arm.name
    return tuple(arm.name for arm in fitting)


# ---- on a laptop -------------------------------------------------------------------------------


def _demo(joining: Sequence[str]) -> Study:
    small = replace(reach_recipe("small"), seeds=(0, 1, 2, 3))
    # fewer keys are learned in fewer steps
    recipe = replace(
        small,
        task=changed(small.task, keys=96),
        methods=("dat(latest=0.4, otherwise=retry)",),
        settings=replace(small.settings, steps=1400, decay_from=0.9),
    )
    attention, rest = "attention(heads=2, weights=scalable)", "@ 64, head=2"
    plan = Plan(
        recipe,
        designs={"parallel": f"1 x ({ORTHOGONAL} | {attention} > mlp) {rest}"},
        recurrences=_every_recurrence(ORTHOGONAL),
        items={"softmax": "weights=softmax"},
        beside=(),
        tasks={"parity": "parity(length=8)", "copy": "copy(signs=2, length=8)"},
        state=("modsum(modulus=2, length=8)", f"1 x (RECURRENCE > mlp) {rest}"),
        steps=2000,
        switches=(50, 100, 200, 400, 800),
        sizes={
            "2-blocks": f"2 x ({ORTHOGONAL} > conv(kernel=2) > {attention} > mlp) {rest}",
            "width-32": f"{recipe.model.partition(' @ ')[0]} @ 32, head=2",
            "width-128": f"{recipe.model.partition(' @ ')[0]} @ 128, head=2",
        },
        entangled="entangled_parity(keys=96, length=8)",
        attention=f"2 x ({attention} > mlp) {rest}",
    )
    # keys of one token: a single block has no layer that could join two of them
    layouts: dict[str, Arguments] = {layout: {"layout": layout} for layout in LAYOUTS}
    many: dict[str, Arguments] = {"many-keys": {"keys": 32768}}
    far = list(far_arms(small, layouts | many, {}, sequences=(64, 64)))
    outcome = replace(recipe.settings, steps=2500)
    arms = [
        *_arms(plan, joining), *far, *weights_arms(far[0]),
        *outcome_arms(recipe, outcome), *question_arms(plan),
    ]  # fmt: skip
    # with fewer steps the first phase of the recipe has no time to converge
    halving = Halving(at=10.0, rounds=2, keep=0.3, seeds=1, steps=1.0)
    names = ("parallel", "gru", "deltanet", "softmax", "with-*")
    screened = _screened(arms, [f"candidate-{name}" for name in names])
    shown = ("separate", "chained")
    return Study(
        "reach", "demo", TITLE, QUESTION, arms, [*layout_claims(shown, 10, 0.9), JOINT],
        NEAR, default=(SCREEN, *(f"layout-{name}" for name in shown), "layout-separate-joint"),
        screen=Screen(screened, halving, seeds=(100, 101), steps=1.0, survivors=1),
    )  # fmt: skip


# ---- on a GPU ----------------------------------------------------------------------------------

ITEMS = {
    **{name: f"weights={name}" for name in ("softmax", "asentmax", "sink")},
    "temperature": "weights=temperature(59)",  # the tokens of the longest row in training
    "tra": "attention(tra)",  # it makes its own weights
    "forget": "scheme=forget",
    # a switch by a threshold
    "threshold": "dat(rate=0.5, latest=0.25, otherwise=retry)",
    "ramp": "dat(mode=ramp, switch=converged, rate=0.5, latest=0.25, otherwise=retry)",
    "heads": "attention(heads=4, weights=scalable)",
}
#: recurrences without a kernel: a step takes about ten times as long as one of an LSTM, so the
#: arms that have them must be named
SLOW = ("gru", "slstm")
#: methods that are tried beside DAT, where they are registered
METHODS = ("state_passing", "state_noise", "branch_dropout", "random_windows", "ema")
NEAR_TASK = "composite(modulus=10, keys=1024, queries=8, length=25)"
TASKS = {
    "parity-recall": "composite(modulus=2, keys=1024, queries=8, length=25)",
    "permutation-recall": "composite(group=S5, keys=1024, queries=8, length=25)",
    "s3-recall": "composite(group=S3, keys=1024, queries=8, length=25)",
    "parity": "parity(length=25)",
    "permutation": "permutation(group=S5, length=25)",
    "flipflop": "flipflop(length=64)",
    "copy": "copy(length=25)",
    "copy-pool": "copy(length=25, sign_pool=4)",
    "addition": "addition(order=reversed, length=10)",
    "addition-hints": "addition(order=reversed, hints=true, length=10)",
}


def _full(joining: Sequence[str]) -> Study:
    preset = reach_recipe()
    # by_length comes with the recipe; with bf16 the study takes about half as long
    settings = replace(preset.settings, precision="bf16")
    farthest = replace(preset, seeds=tuple(range(10)), settings=settings)
    attention, four = (f"attention(heads={heads}, weights=scalable)" for heads in (1, 4))
    block = f"lstm > conv(kernel=2) > {attention} > mlp"
    # keys of one token make shorter rows, which are enough for all that is not tested so far out.
    # Their convolution stands behind the LSTM, where docs/ measured them; before it is a candidate
    later = tuple(changed(line, latest=0.25) for line in farthest.methods)
    recipe = replace(farthest, task=NEAR_TASK, model=f"2 x ({block})", methods=later)
    sized = block.replace(attention, four)  # depth and width were asked with four heads
    plan = Plan(
        recipe,
        designs={
            "parallel": f"2 x (lstm | {attention} > mlp)",
            "parallel-conv": f"2 x (lstm | (conv(kernel=2) > {attention}) > mlp)",
            "conv-first": f"2 x (conv(kernel=2) > lstm > {attention} > mlp)",
            "serial-without-conv": f"2 x (lstm > {attention} > mlp)",
            "4-blocks": f"4 x ({block})",
        },
        recurrences=_every_recurrence("lstm"),
        items=ITEMS | {name: f"method={name}" for name in METHODS if name in methods},
        beside=("gru", "slstm", "deltanet"),
        tasks=TASKS,
        state=("modsum(modulus=10, length=25)", "2 x (RECURRENCE > mlp)"),
        steps=5000,
        switches=(250, 500, 1000, 2000, 4000),
        sizes={
            **{f"{blocks}-block{'s' * (blocks > 1)}": f"{blocks} x ({sized})" for blocks in (1, 4)},
            **{f"width-{width}": f"2 x ({sized}) @ {width}" for width in (64, 256)},
        },
        entangled="entangled_parity(keys=1024, length=25)",
        attention=f"4 x ({attention} > mlp)",
    )
    layouts: dict[str, Arguments] = {layout: {"layout": layout} for layout in LAYOUTS}
    without: dict[str, Arguments] = {"without-pool": {"key_pool": 0}}
    repeat: dict[str, Arguments] = {"repeat": {"repeat": "latest"}}
    # of far-separate, whose rows are long enough, a test at 4,000 times the length is its own
    far = list(far_arms(farthest, layouts | without, repeat, sequences=(256, 64)))
    near = replace(with_item(farthest, "conv(kernel=2)"), task=NEAR_TASK)
    far += far_arms(near, {"one-token": {"keys": 10240}}, {}, sequences=(256, 64))
    outcome = replace(recipe.settings, steps=12000, batch_size=256)
    arms = [
        *_arms(plan, joining), *far, *weights_arms(far[0]),
        *outcome_arms(recipe, outcome), *question_arms(plan), *step_arms(plan),
    ]  # fmt: skip
    # 7,500 and 10,000 steps: `latest` of DAT is a share, and phase 1 needs its time
    halving = Halving(at=10.0, rounds=2, keep=0.25, seeds=2, steps=0.75)
    fast = [name for name, item in plan.named_recurrences.items() if parse(item).name not in SLOW]
    default = [SCREEN, "layout-separate-joint", *(f"far-{name}" for name in LAYOUTS)]
    default += [f"recurrence-{name}-{way}" for name in fast for way in ("dat", "joint")]
    default += [f"state-{name}" for name in (*KEEPS, *LOSES)]
    default += ["task-*", "outcome-from-one-retry", "outcome-from-one-joint"]
    slow = [f"candidate-{design}{name}" for design in ("", "parallel-") for name in SLOW]
    screened = [arm for arm in arms if arm.name not in slow]
    return Study(
        "reach", "full", TITLE, QUESTION, arms, full_claims(), (1, 3, 10, 40), precision="bf16",
        default=default,
        screen=Screen(
            _screened(screened, ["candidate-*"]),
            halving,
            seeds=(100, 101, 102, 103),
            steps=0.5,
            survivors=2,
        ),
    )  # fmt: skip
