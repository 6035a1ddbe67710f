"""`outlast reproduce phase1`: what makes the first phase of DAT converge on every seed?

State-first DAT can only work where the recurrent pathway learns the state in phase 1, and whether
it does depends on the seed. Each arm trains the recurrent stack of the paper-scale hybrid on the
state alone until the smoothed loss is under 0.01, with one thing changed: outputs, initialisation,
learning rate, depth, batch, clipping. (Our own question; the paper does not discuss it.)
There is no attention to delay here, so the method is `loss_order`: it has the phase 1 of `dat`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from outlast.registry import studies
from outlast.runs.spec import RunSpec, Settings
from outlast.runs.study import Claim
from outlast.studies.base import Arm, Study

QUESTION = (
    "Delayed attention needs a recurrent pathway that learns the state by itself. What decides "
    "whether it does, on every seed?"
)
TASKS = {
    "demo": "composite(modulus=2, keys=128, queries=4, length=10)",
    "paper": "composite(modulus=10, keys=1024, queries=8, length=25)",
}
#: an arm for each thing changed: its model line, and by which factor settings differ
VARIANTS: dict[str, tuple[str, dict[str, float]]] = {
    "default": ("4 x (lstm > mlp) @ {width}", {}),
    "answers-only": ("4 x (lstm > mlp) @ {width}, head={answers}", {}),
    "orthogonal": ("4 x (lstm(init=orthogonal) > mlp) @ {width}", {}),
    "forget1": ("4 x (lstm(forget_bias=1) > mlp) @ {width}", {}),
    "orthogonal-forget1": ("4 x (lstm(init=orthogonal, forget_bias=1) > mlp) @ {width}", {}),
    "lr-halved": ("4 x (lstm > mlp) @ {width}", {"lr": 0.5}),
    "lr-doubled": ("4 x (lstm > mlp) @ {width}", {"lr": 2}),
    "blocks-1": ("1 x (lstm > mlp) @ {width}", {}),
    "blocks-2": ("2 x (lstm > mlp) @ {width}", {}),
    "embedding-0.02": ("4 x (lstm > mlp) @ {width}, embedding=0.02", {}),
    "batch-fourfold": ("4 x (lstm > mlp) @ {width}", {"batch_size": 4}),
    "clip-quartered": ("4 x (lstm > mlp) @ {width}", {"max_grad_norm": 0.25}),
}


@studies.register("phase1")
def phase1(scale: Literal["demo", "paper"] = "demo") -> Study:
    """What makes the first phase of DAT converge: outputs, initialisation, rate, depth.

    Args:
        scale: `demo` runs on a laptop in minutes, `paper` wants a GPU.
    """
    base = Settings(steps=3000, lr=2e-3, schedule="constant", probe_every=500)
    base = base if scale == "paper" else replace(base, steps=1000, batch_size=32)
    seeds = tuple(range(16 if scale == "paper" else 4))
    method = ("loss_order(latest=1.0, otherwise=wait)",)
    arms = []
    for name, (line, changed) in VARIANTS.items():
        width, answers = (128, 10) if scale == "paper" else (64, 2)
        settings = replace(base, **{k: getattr(base, k) * by for k, by in changed.items()})
        run = RunSpec(
            TASKS[scale], line.format(width=width, answers=answers), method, seeds, settings, name
        )
        arms.append(Arm(name, run, "phase 1"))
    claims = [
        Claim(
            "With torch's own initialisation the state is learned on every seed",
            "default",
            3,
            "the question",
            statistic="min",
            part="state",
            low=0.9,
            stated="after",
        )
    ]
    return Study("phase1", scale, "What makes phase 1 converge", QUESTION, arms, claims, (1, 3, 10))
