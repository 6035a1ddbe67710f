"""Successive halving: few seeds and few steps first, and the best share goes on.

The score of a run is the share of sequences that it gets entirely right at one length (`at`), as
the mean over its seeds. Each round trains its runs anew: a schedule of the learning rate depends on
the number of steps, so a longer run is another run. The last round has all seeds and all steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_type_hints

from outlast.arguments import build_from
from outlast.errors import OutlastError, TrainingError, bad_value, incompatible, require
from outlast.evaluation.ladder import out_of_reach, rungs
from outlast.models import build_model
from outlast.registry import tasks
from outlast.runs.folder import RESULTS, write_json
from outlast.runs.records import read_results
from outlast.runs.spec import RunSpec
from outlast.specs import Spec, parse
from outlast.sweep.candidates import check_fit
from outlast.sweep.engine import Machine, Outcome, Watch, run_packs
from outlast.sweep.packs import Pack, cut_packs
from outlast.workflow.evaluate import Evaluation

#: the scores of all rounds, in the folder of the sweep
SCORES = "halving.json"
#: the most rounds
MOST_ROUNDS = 20


@dataclass(frozen=True)
class Halving:
    """How a search goes: ``halving(at=3, rounds=3, keep=0.5, seeds=1, steps=0.25)``.

    `at` is the multiple of the training length at which runs are scored. `keep` is the share of
    runs that goes on after each round. `seeds` and `steps` are those of the first round; a number
    of steps that is not whole is a share of all steps. They grow to those of the last round by a
    constant factor.
    """

    at: float = 3.0
    rounds: int = 3
    keep: float = 0.5
    seeds: int = 1
    steps: int | float = 0.25

    def __post_init__(self) -> None:
        require(0 < self.at < math.inf, "halving: at", self.at, "a multiple of the length > 0")
        most = f"a whole number from 2 to {MOST_ROUNDS}"
        require(2 <= self.rounds <= MOST_ROUNDS, "halving: rounds", self.rounds, most)
        require(0 < self.keep < 1, "halving: keep", self.keep, "a share between 0 and 1")
        require(self.seeds >= 1, "halving: seeds", self.seeds, "a whole number >= 1")
        fits = self.steps >= 1 if isinstance(self.steps, int) else 0 < self.steps <= 1
        require(fits, "halving: steps", self.steps, "a number of steps, or a share up to 1.0")

    @classmethod
    def read(cls, text: str) -> Halving:
        """What stands behind ``--halving``: ``halving(at=3)``, or its arguments alone."""
        spec = parse(text if text.strip().startswith("halving") else f"halving({text})")
        require(spec.name == "halving", "halving", text, "halving(at=3, rounds=3, keep=0.5, ...)")
        rule: Halving = build_from(spec, cls, get_type_hints(cls), "halving")
        return rule

    def __str__(self) -> str:
        return str(Spec("halving", (), tuple(asdict(self).items())))

    def shortened(self, run: RunSpec, number: int) -> RunSpec:
        """A run as it is in a round; rounds are counted from 1, and the last has the run itself."""
        if number == self.rounds:
            return run
        settings, grown = run.settings, (number - 1) / (self.rounds - 1)
        first = self.steps if isinstance(self.steps, int) else self.steps * settings.steps
        block = settings.steps_per_block
        wanted = _grown(min(first, settings.steps), settings.steps, grown)
        steps = min(settings.steps, max(1, round(wanted / block)) * block)
        seeds = round(_grown(min(self.seeds, len(run.seeds)), len(run.seeds), grown))
        return replace(run, seeds=run.seeds[:seeds], settings=replace(settings, steps=steps))

    def count_kept(self, runs: int) -> int:
        """How many of so many runs go on."""
        return max(1, math.ceil(self.keep * runs - 1e-9))


def describe_rounds(candidates: Mapping[str, RunSpec], halving: Halving) -> list[str]:
    """What each round takes: ``round 1: 8 runs of 1 seed and 100 steps``, by the first run."""
    first, left, lines = next(iter(candidates.values())), len(candidates), []
    for number in range(1, halving.rounds + 1):
        run = halving.shortened(first, number)
        runs, seeds = f"{left:,} run{'s' * (left != 1)}", len(run.seeds)
        each = f"{seeds:,} seed{'s' * (seeds != 1)} and {run.settings.steps:,} steps"
        lines.append(f"round {number}: {runs} of {each}")
        left = halving.count_kept(left)
    return lines


def _grown(first: float, last: float, share: float) -> float:
    return first * (last / first) ** share


@dataclass(frozen=True)
class Round:
    """A round: its runs, the score of each (None: it failed), and those that go on, best first."""

    number: int
    runs: Mapping[str, RunSpec]
    scores: Mapping[str, float | None]
    kept: Sequence[str]


def successive_halving(
    candidates: Mapping[str, RunSpec],
    halving: Halving,
    score: Callable[[int, Mapping[str, RunSpec]], Mapping[str, float | None] | None],
) -> list[Round]:
    """Search for the best of some runs.

    Args:
        candidates: The runs by name, with all the seeds and steps of the last round.
        halving: How many rounds, what each takes, and the share that goes on.
        score: Called as ``score(number, runs)`` for each round, counted from 1. Trains the runs,
            which have the seeds and steps of that round. Returns the score of each by name, None
            for one that failed; or None for all if it was stopped.

    Returns:
        The rounds, also if it was stopped before the last. The best run is ``[-1].kept[0]``. Of
        equal scores the earlier candidate goes on.
    """
    rounds: list[Round] = []
    names: Sequence[str] = list(candidates)
    for number in range(1, halving.rounds + 1):
        runs = {name: halving.shortened(candidates[name], number) for name in names}
        scores = score(number, runs)
        if scores is None:
            break
        ranked = sorted(
            (name for name in candidates if scores.get(name) is not None),
            key=lambda name: -(scores[name] or 0.0),
        )
        if not ranked:
            raise TrainingError(f"round {number} of the search: no run has a score, as all failed")
        last = number == halving.rounds
        names = ranked if last else ranked[: halving.count_kept(len(runs))]
        rounds.append(Round(number, runs, dict(scores), names))
    return rounds


def check_halving(candidates: Mapping[str, RunSpec], halving: Halving) -> None:
    """A search that cannot be scored is an error before it begins."""
    kinds = {(run.task, run.model): run for run in candidates.values()}
    for run in kinds.values():
        task = tasks.build(run.task)
        if task.measure == "bits":
            why = "a test of text gives bits per byte, and no answers that are right"
            raise incompatible("--halving", f"task={task.name}", why)
        model = build_model(run.model, task.vocabulary, task.classes, seed=0)
        ((_, length),) = rungs(task, (halving.at,))
        reason = out_of_reach(task, length, model.ceiling)
        if reason is not None:
            raise bad_value("halving: at", halving.at, f"a multiple that can be tested: {reason}")
    for run in candidates.values():
        if halving.seeds > len(run.seeds):
            accepted = f"at most {len(run.seeds)}, the seeds of the runs"
            raise bad_value("halving: seeds", halving.seeds, accepted)
    for number in range(1, halving.rounds):
        check_fit({name: halving.shortened(run, number) for name, run in candidates.items()})


def halve(
    out: Path,
    candidates: Mapping[str, RunSpec],
    halving: Halving,
    machine: Machine,
    evaluation: Evaluation,
    pack_seeds: int,
    watch: Callable[[int, Sequence[Pack]], Watch],
) -> tuple[list[Round], Outcome]:
    """Search with run folders: round 2 is in `out`/round2, and so on; scores are in `halving.json`.

    `watch` is called before each round and returns what is told about the packs of it. Given again,
    the same search goes on: what is recorded is not trained again. Returns the rounds that are
    through, and the packs of all rounds that are not at their end. The caller has locked `out`.
    """
    failed: dict[str, str] = {}
    stopped: Sequence[str] = ()

    def train(number: int, runs: Mapping[str, RunSpec]) -> dict[str, float | None] | None:
        nonlocal stopped
        folder = out / f"round{number}"
        ladder = evaluation.ladder if number == halving.rounds else (1.0,)
        tests = replace(evaluation, ladder=tuple(sorted({*map(float, ladder), halving.at})))
        packs = cut_packs(runs, tests, pack_seeds)
        outcome = run_packs(folder, packs, machine, watch(number, packs))
        failed.update({n: f"round {number}: {why}" for n, why in outcome.failed.items()})
        stopped = outcome.stopped
        if stopped:
            return None
        if len(outcome.failed) == len(packs):
            reason = next(iter(outcome.failed.values()))
            raise TrainingError(f"round {number} of the search: every pack failed: {reason}")
        lost = {name for pack in packs if pack.name in outcome.failed for name in pack.names}
        return {
            name: None if name in lost else joint_accuracy(folder / name, halving.at)
            for name in runs
        }

    rounds = successive_halving(candidates, halving, train)
    scores = [{"round": r.number, "scores": dict(r.scores), "kept": list(r.kept)} for r in rounds]
    if scores:
        write_json(out / SCORES, {"at": halving.at, "rounds": scores})
    return rounds, Outcome(failed, stopped)


def joint_accuracy(folder: Path, at: float) -> float:
    """The share of sequences that a tested run gets entirely right at a multiple of its length.

    The mean over its seeds; a seed that diverged counts as it was left.
    """
    rows = [
        row
        for row in read_results(folder / RESULTS).rows
        if row["variant"] is None and row["multiple"] == at
    ]
    reasons = [row.get("reason") or "no result" for row in rows if row["exact"] is None]
    if reasons or not rows:
        reason = reasons[0] if reasons else "it was not tested there"
        raise OutlastError(f"{folder} has no score at {at:g} x its length: {reason}")
    return sum((row["exact"] or {})["joint"] for row in rows) / len(rows)
