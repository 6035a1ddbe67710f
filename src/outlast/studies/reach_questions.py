"""Arms of the study `reach` for the open questions of delayed attention.

Most are the recipe with fewer steps, and differ from it in what the question is about. At `full`
``size-*`` has four heads, too, and ``steps-*`` the model and steps of docs/findings/steps.md:

- ``switch-*``: when to let attention in, at a step of one's own choice or by what was learned.
- ``mode-*``: what attention does before that.
- ``size-*``: depth and width, with DAT and jointly.
- ``entangled-*``: a task in which an answer mixes state and recall.
- ``pure-*``: what is left of DAT in a model of recurrence alone or attention alone.
- ``method-*``: joint training with another method in the place of DAT.
- ``steps-*``: steps of one length or of mixed ones, in the design in which it mattered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from outlast.runs.spec import RunSpec
from outlast.specs import Spec, parse
from outlast.studies.base import Arm
from outlast.studies.joining import slug
from outlast.studies.reach_arms import NEAR, Plan, changed

MODES = ("freeze", "ramp", "detach")
#: what is tried in the place of DAT; two windows as in the paper, as well as any window
METHODS = (
    "random_windows",
    "random_windows(draw=ends)",
    "branch_dropout",
    "branch_dropout(p=0.5)",
    "state_noise",
    "state_passing",
    "curriculum(from=2, by=loss)",
    "ema",
)


def question_arms(plan: Plan) -> Iterator[Arm]:
    """The arms of the questions that both scales have."""
    for part in (_switches, _modes, _sizes, _entangled, _pure, _methods):
        for name, run in part(plan):
            yield _arm(name, run)


def step_arms(plan: Plan) -> Iterator[Arm]:
    """Small batches have noisier gradients, as steps of one length may have.

    These have the model and steps with which a difference was seen (docs/findings/steps.md).
    """
    short = plan.short
    settings = replace(short.settings, steps=7500)
    parallel = RunSpec(short.task, "4 x (lstm | attention > mlp)", (), short.seeds, settings)
    mixed = replace(parallel.settings, by_length=False)
    yield _arm("steps-of-one-length", parallel)
    yield _arm("steps-mixed", replace(parallel, settings=mixed))
    yield _arm("steps-mixed-small", replace(parallel, settings=replace(mixed, batch_size=32)))


def _arm(name: str, run: RunSpec) -> Arm:
    return Arm(name, replace(run, label=name.replace("-", " ")), name.partition("-")[0], NEAR)


def _switches(plan: Plan) -> Iterator[tuple[str, RunSpec]]:
    """Fixed steps, and the rule that the recipe lacks. ``recurrence-lstm-dat`` has its own rule."""
    short = plan.short.methods[0]
    arguments = dict(parse(short).kwargs)
    rate = f", rate={arguments['rate']}" if "rate" in arguments else ""
    rules = {str(step): f"dat(switch={step}{rate})" for step in plan.switches}
    if "switch" in arguments:
        rules["threshold"] = changed(short, switch=Spec("below", (0.01,)))
    else:
        rules["converged"] = f"dat(switch=converged{rate})"
    for name, method in rules.items():
        yield f"switch-{name}", replace(plan.short, methods=(method,))


def _modes(plan: Plan) -> Iterator[tuple[str, RunSpec]]:
    """``recurrence-lstm-dat`` skips attention."""
    for mode in MODES:
        methods = (changed(plan.short.methods[0], mode=mode),)
        yield f"mode-{mode}", replace(plan.short, methods=methods)


def _sizes(plan: Plan) -> Iterator[tuple[str, RunSpec]]:
    for name, line in plan.sizes.items():
        run = replace(plan.short, model=line)
        yield f"size-{name}-dat", run
        yield f"size-{name}-joint", replace(run, methods=())


def _entangled(plan: Plan) -> Iterator[tuple[str, RunSpec]]:
    run = replace(plan.short, task=plan.entangled)
    yield "entangled-dat", run
    yield "entangled-joint", replace(run, methods=())


def _pure(plan: Plan) -> Iterator[tuple[str, RunSpec]]:
    """Without attention DAT is the order of its losses; attention alone can be frozen."""
    dat = plan.short.methods[0]
    _, alone = plan.state
    recurrence = replace(plan.short, model=alone.replace("RECURRENCE", plan.recurrences[0]))
    attention = replace(plan.short, model=plan.attention)
    yield (
        "pure-recurrence-ordered",
        replace(recurrence, methods=(dat.replace("dat(", "loss_order("),)),
    )
    yield "pure-recurrence-joint", replace(recurrence, methods=())
    frozen = changed(dat, mode="freeze", otherwise="switch")
    yield "pure-attention-dat", replace(attention, methods=(frozen,))
    yield "pure-attention-joint", replace(attention, methods=())


def _methods(plan: Plan) -> Iterator[tuple[str, RunSpec]]:
    """``recurrence-lstm-joint`` has none."""
    for line in METHODS:
        yield f"method-{slug(line)}", replace(plan.short, methods=(line,))
