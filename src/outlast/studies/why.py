"""`outlast reproduce why`: what delayed attention changes in a hybrid, and what it costs.

The runs that `outlast analyse` looks at, and trainings that test an explanation:

- ``joint``, ``dat``, ``control``: as in the study `dat`. Weights are kept along the way.
- ``conv``: the same training with a short convolution before attention. Recall needs, at each
  digit, the key before it. If delayed attention loses recall because the first phase forgets the
  keys, attention that sees the token before by itself must not lose it.
- ``uniform``, ``hard``: attention gives all keys one weight, or one key all weight. ``qk``,
  ``values``: queries and keys, or values, stay as initialised. Attention is absent in the first
  phase, so that these differ from ``dat`` after the switch alone: which part of attention carries
  what it adds?
- ``chained``: an entangled task. A key asks for the running sum at its place, so that what is
  recalled is itself a state.

After arXiv 2510.00258, whose explanation has no measurements. All arms are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from outlast.registry import studies
from outlast.runs.spec import RunSpec, Settings
from outlast.runs.study import Claim
from outlast.studies.base import Analysis, Arm, Study
from outlast.studies.dat import DEMO_LSTM, DEMO_TASK, LONG, PAPER_TASK, RETRY

TITLE = "Why delayed attention works"
QUESTION = (
    "Delayed attention keeps the state on long sequences, and some hybrids lose recall with it. "
    "What does each pathway learn, which part of attention is needed, and why is recall lost?"
)
#: the keys are what the first phase forgets, so they are looked for along the way, too
ANALYSES = (
    *map(Analysis, ("anatomy", "state-probe")),
    Analysis("key-probe", along=True),
    *map(Analysis, ("sharpness", "ablation", "covariance", "token-filter")),
    Analysis("gradients", toward="dat"),
)
#: the paper's task, in which a key asks for the running sum at its place
CHAINED_TASK = PAPER_TASK.replace("length=25", "layout=chained, length=25")


@studies.register("why")
def why(scale: Literal["demo", "paper"] = "demo") -> Study:
    """Runs to analyse: joint training, delayed attention, and what tests an explanation of it.

    Args:
        scale: `demo` runs on a laptop in minutes, `paper` wants a GPU.
    """
    return _demo() if scale == "demo" else _paper()


def _arms(
    task: str,
    designs: dict[str, str],
    taken_apart: Sequence[str],
    ways: dict[str, str],
    rest: str,
    seeds: int,
    settings: Settings,
) -> Iterator[Arm]:
    """Each design in every way of training and with a convolution, and some of them taken apart.

    `designs` have ATTENTION where attention stands. `ways` has the method of each way, `rest` is
    what every model line ends with.
    """

    def arm(design: str, name: str, words: str, attention: str, *methods: str) -> Arm:
        line = designs[design].replace("ATTENTION", attention) + rest
        given = tuple(method for method in methods if method)
        run = RunSpec(task, line, given, tuple(range(seeds)), settings, f"{design}, {words}")
        return Arm(f"{design}-{name}", run, design)

    plain = "attention"
    for design in designs:
        yield arm(design, "joint", "jointly", plain)
        yield arm(design, "dat", "DAT", plain, ways["dat"])
        yield arm(design, "control", "only the losses ordered", plain, ways["control"])
        seen = "conv(kernel=2) > attention"
        if "|" not in designs[design]:
            yield arm(design, "conv", "DAT, convolution", seen, ways["dat"])
            yield arm(design, "conv-joint", "jointly, convolution", seen)
    for design in taken_apart:
        for name in ("uniform", "hard"):
            changed = f"attention(weights={name})"
            yield arm(design, name, f"DAT, {name} weights", changed, ways["dat"])
        for name, words in (("qk", "queries and keys"), ("values", "values")):
            fixed = f"fix({name})"
            yield arm(design, name, f"DAT, {words} fixed", plain, ways["dat"], fixed)


def _conv_claims(serial: str) -> list[Claim]:
    """Predictions that were put into words before the study was run at its paper scale."""
    reason = "our explanation: the first phase forgets the keys"
    return [
        Claim(
            f"A short convolution mends recall with DAT ({serial})",
            f"{serial}-conv", 3, reason, statistic="difference", versus=f"{serial}-dat",
            part="recall", low=0.2, stated="before",
        ),
        Claim(
            f"With it DAT keeps the state, too ({serial})",
            f"{serial}-conv", 3, reason, part="state", low=0.9, stated="before",
        ),
    ]  # fmt: skip


def _part_claims(design: str, parts: dict[str, str]) -> list[Claim]:
    """What attention cannot do without: predictions, as above."""
    return [
        Claim(
            f"Attention with {words} does not recall",
            f"{design}-{name}",
            1,
            "recall is a choice of keys",
            part="recall",
            high=0.5,
            stated="before",
        )
        for name, words in parts.items()
    ]


def _demo() -> Study:
    settings = Settings(
        steps=1800, batch_size=32, lr=2e-3, decay_from=0.9, keep_checkpoints="every=600"
    )
    ways = {
        "dat": "dat(latest=0.3, otherwise=retry)",
        "control": "loss_order(phase1=weights(recall=0.3), latest=0.3)",
    }
    designs = {"serial": f"1 x ({DEMO_LSTM} > ATTENTION > mlp) @ 64"}
    arms = list(_arms(DEMO_TASK, designs, ["serial"], ways, ", head=2", 4, settings))
    return Study(
        "why", "demo", TITLE, QUESTION, arms,
        _part_claims("serial", {"qk": "queries and keys fixed"}), (1, 2, 3),
        default=("serial-joint", "serial-dat", "serial-conv", "serial-qk"), analyses=ANALYSES,
    )  # fmt: skip


def _paper() -> Study:
    settings = Settings(
        steps=7500, batch_size=128, lr=2e-3, by_length=True, checkpoint_every=2500,
        keep_checkpoints="every=500",  # two before the first phase of DAT ends
    )  # fmt: skip
    ways = {"dat": f"dat({RETRY})", "control": f"loss_order({LONG})"}
    designs = {
        "parallel2": "2 x (lstm | ATTENTION > mlp)",
        "serial2": "2 x (lstm > ATTENTION > mlp)",
        "serial4": "4 x (lstm > ATTENTION > mlp)",
    }
    taken_apart = ["parallel2", "serial2"]
    arms = list(_arms(PAPER_TASK, designs, taken_apart, ways, "", 10, settings))
    entangled = {"chained2": designs["parallel2"]}
    arms += _arms(CHAINED_TASK, entangled, [], ways, "", 10, settings)
    parts = {"uniform": "uniform weights", "qk": "queries and keys fixed"}
    claims = [*_conv_claims("serial2"), *_conv_claims("serial4")]
    claims += _part_claims("parallel2", parts)
    claims.append(
        Claim(
            "DAT transfers to a task in which recall needs the state",
            "chained2-dat",
            3,
            "the open question of arXiv 2510.00258",
            low=0.9,
            stated="before",
        )
    )
    apart = {f"serial2-{name}" for name in ("uniform", "hard", "qk", "values")}
    default = [arm.name for arm in arms if arm.name not in apart]
    return Study("why", "paper", TITLE, QUESTION, arms, claims, default=default, analyses=ANALYSES)
