"""What is killed: commands that are given one after the other, in a folder of their own.

Every registered method is among them, a plug-in's too. So are waves, processes, bf16, data by
length, parked seeds, errors that roll a block back, grids, studies, seeds of another run, tests and
pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.registry import methods
from outlast.specs import parse

Command = tuple[str, ...]

PARITY = "parity(length=4)"
DOCS = Path(__file__).parents[2] / "docs"
#: tasks for methods that do not go with the usual one
FITTING = {"block_shuffle": f'text("{DOCS}", files="*.md", length=20, reach=4)'}
RETRY = "dat(switch=below(0.000001), latest=6, otherwise=retry)"
#: methods in the forms that keep a state
METHODS = (
    "dat(switch=12, rewarm=6)",
    "dat(mode=freeze, switch=12)",
    "dat(mode=ramp, switch=9, ramp=6)",
    "dat(mode=detach, switch=0.5, recurrent=0.5)",
    "dat(switch=plateau(patience=3), latest=18)",
    "dat(switch=converged(patience=6), latest=18)",
    RETRY,
    "loss_order(switch=12)",
    "ema(0.9)",
    "curriculum(from=2, by=steps, until=0.8)",
    "curriculum(from=2, by=loss, level=1.2)",
    "curriculum(from=2, by=plateau, patience=3)",
)


@dataclass(frozen=True)
class Case:
    """Some commands; `half` is a command that is stopped half way before them, and not killed.

    Args:
        name: How the case is called in the table.
        commands: Each is given until it ends well.
        half: A run to train to the middle first.
        breaks: Rows whose weights become NaN, and the step at which they do.
        errors: Whether blocks also fail with an error, beside the kills.
        page: Whether pages are drawn; a study is quick without its page.
        most: The most kills of one try.
    """

    name: str
    commands: tuple[Command, ...]
    half: Command | None = None
    breaks: tuple[tuple[int, int], ...] = ()
    errors: bool = False
    page: bool = False
    most: int = 5


def train(*options: str, out: str = "run", task: str = PARITY) -> Command:
    """A run of less than a second."""
    usual = {
        "--model": "lstm > attention(heads=2) @ 8",
        "--steps": "24",
        "--batch-size": "4",
        "--warmup": "3",
        "--steps-per-block": "3",
        "--probe-every": "6",
        "--checkpoint-every": "6",
        "--seeds": "0-1",
        "--device": "cpu",
    }
    left = {flag: value for flag, value in usual.items() if flag not in options}
    pairs = [word for pair in left.items() for word in pair]
    return ("train", "--task", task, *pairs, *options, "--out", out)


def _method_options(specs: Sequence[str]) -> list[str]:
    return [word for spec in specs for word in ("--method", spec)]


def _of_methods() -> list[Case]:
    """A case for each method; one that is not in the table is taken as it comes."""
    known = {parse(spec).name for spec in METHODS}
    specs = [*METHODS, *(name for name in methods.names() if name not in known)]
    return [
        Case(spec, (train(*_method_options([spec]), task=FITTING.get(spec, PARITY)),))
        for spec in specs
    ]


GRID = ("--grid", "lr=0.004,0.001", "method=none,dat(switch=6)")
STUDY = ("reproduce", "tiny", "--device", "cpu", "--workers", "2", "--out", "study")
CASES: list[Case] = [
    Case("no method", (train(),)),
    *_of_methods(),
    Case("methods together", (train(*_method_options([RETRY, "ema(0.9)"])),)),
    Case("waves", (train("--seeds", "0-2", "--seeds-at-once", "1"),)),
    Case("processes", (train("--processes", "2"),)),
    Case(
        "processes, waves, ema",
        (train("--seeds", "0-4", "--processes", "2", "--seeds-at-once", "2", "--method", "ema"),),
    ),
    Case("bf16", (train("--precision", "bf16"),)),
    Case("by length", (train("--by-length"),)),
    Case(
        "kept checkpoints",
        (
            train(
                "--keep-checkpoints",
                "every=6",
                "--method",
                "dat(switch=9)",
                "--checkpoint-every",
                "12",
            ),
        ),
    ),
    Case(
        "kept checkpoints of some seeds",
        (("resume", "half", "--seeds", "1,0", "--out", "some", "--device", "cpu"),),
        half=train("--keep-checkpoints", "every=6", "--method", "dat(switch=9)", out="half"),
    ),
    Case("dropout", (train("--model", "lstm > mlp(dropout=0.2) @ 8"),)),
    Case("a parked seed", (train("--seeds", "0-2"),), breaks=((1, 11),)),
    Case("a parked seed, then retry", (train("--method", RETRY),), breaks=((0, 14),)),
    Case(
        "seeds that succeed",
        (train("--stop", "success(accuracy=0.5, at=1, probes=1)", "--seeds", "0-2"),),
    ),
    Case("errors that roll back", (train("--method", "dat(switch=12)"),), errors=True),
    Case("errors in processes", (train("--processes", "2"),), errors=True),
    Case("a grid", (train(*GRID, out="grid"),), most=8),
    Case("a grid with a diverged run", (train("--grid", "lr=0.002,1e38", out="grid"),)),
    Case(
        "a grid anew",
        (train(*GRID, out="grid"), train(*GRID, "--steps", "12", "--overwrite", out="grid")),
        most=8,
    ),
    Case(
        "a run that starts from another",
        (train(out="first"), train("--start-from", "first", "--method", "state_passing")),
    ),
    Case("a run anew", (train(), train("--lr", "0.01", "--overwrite"))),
    Case(
        "seeds of a run",
        (("resume", "half", "--seeds", "3,0", "--out", "some", "--device", "cpu"),),
        half=train("--seeds", "0-3", "--method", "ema(0.9)", out="half"),
        most=8,
    ),
    Case(
        "seeds of a run with retry",
        (("resume", "half", "--seeds", "2,1", "--out", "some", "--device", "cpu"),),
        half=train("--seeds", "0-3", "--method", RETRY, out="half"),
    ),
    Case(
        "tests",
        (
            train(),
            ("eval", "run", "--lengths", "1", "2", "--sequences", "32", "--device", "cpu"),
            ("eval", "run", "--sequences", "32", "--device", "cpu", "--out", "numbers.json"),
        ),
    ),
    Case("a study", (STUDY,), most=8),
    Case("a study, arms as one", ((*STUDY, "--together", "True"),), most=8),
    Case("a study and its page", (STUDY,), page=True, most=3),
    Case("a page", (("report", "half"),), half=train(out="half"), page=True, most=4),
]
