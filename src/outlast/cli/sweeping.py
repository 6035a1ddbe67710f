"""What `outlast sweep` does and shows: the plan, a live table of packs, the best runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.cli.common import say, wrapped
from outlast.cli.exit_codes import FAILED, STOPPED
from outlast.cli.pack_table import PackDisplay
from outlast.cli.results import command
from outlast.cli.sending import and_send, sending
from outlast.cli.tables import Column, show_table
from outlast.errors import OutlastError
from outlast.runs.spec import RunSpec
from outlast.sweep.engine import Machine, Outcome, Watch, check_free, run_packs
from outlast.sweep.halving import Halving, Round, describe_rounds, halve, joint_accuracy
from outlast.sweep.packs import Pack, cut_packs
from outlast.sweep.record import SweepRecord, open_sweep
from outlast.workflow.evaluate import Evaluation

if TYPE_CHECKING:
    from outlast.trackers.recorded import RecordedRuns
    from outlast.trackers.tracking import Tracking

#: runs that are shown at the end
BEST = 10


@dataclass(frozen=True)
class Plan:
    """A sweep that is about to be carried out; `rule` is how it is searched, if it is."""

    out: Path
    candidates: Mapping[str, RunSpec]
    evaluation: Evaluation
    record: SweepRecord
    rule: Halving | None = None

    @cached_property
    def packs(self) -> list[Pack]:
        return cut_packs(self.candidates, self.evaluation, self.record.pack_seeds)

    @property
    def group(self) -> str:
        """What trackers list its runs under."""
        return self.out.resolve().name

    def check_free(self) -> None:
        """Raise if a folder is in the place of a run; the rounds of a search check their own."""
        if self.rule is None:
            check_free(self.out, self.packs)


def show_plan(plan: Plan, machine: Machine) -> None:
    """Say how many runs, seeds and packs there are, and where they are trained."""
    seeds = sum(len(run.seeds) for run in plan.candidates.values())
    names = list(plan.candidates)
    many = f"{len(names):,} run{'s' * (len(names) != 1)}, {seeds:,} seed{'s' * (seeds != 1)}"
    if plan.rule is None:
        packs = len(plan.packs)
        say(f"{many} in {packs:,} pack{'s' * (packs != 1)} on {machine}")
    else:
        say(f"successive halving of {many} on {machine}: {plan.rule}")
        for line in describe_rounds(plan.candidates, plan.rule):
            say(f"  {line}")
    for name in names[:3]:
        say(f"  {name}")
    if len(names) > 3:
        say(f"  and {len(names) - 3:,} more")


def carry_out(plan: Plan, machine: Machine, tracking: Sequence[Tracking] = ()) -> int:
    """Do it, show how far it is, and return the exit code."""
    with open_sweep(plan.out, plan.record, plan.check_free), sending(tracking) as senders:
        show_plan(plan, machine)
        with PackDisplay() as display:
            if plan.rule is None:
                packs, at, folder = plan.packs, max(plan.record.lengths), plan.out
                watch = and_send(display.begin(packs), plan.out, plan.group, senders)
                outcome = run_packs(plan.out, packs, machine, watch)
                best = _ranked(plan.out, plan.candidates, at)
            else:
                rounds, outcome = _search(plan, plan.rule, machine, display, senders)
                at, folder = plan.rule.at, plan.out / f"round{max(1, len(rounds))}"
                best = _of_round(rounds[-1]) if rounds else []
        whole = plan.rule is None and not outcome.stopped and not outcome.failed
        _show_best(best, at, len(plan.candidates) - len(best) if whole else 0)
        code = conclude(outcome)
        for sender in senders if outcome.stopped else ():
            sender.leave_rest()  # it was asked to leave
    if code == 0:
        say(f"a page of all of them: {command('report', [folder])}")
    return code


def _search(
    plan: Plan,
    rule: Halving,
    machine: Machine,
    display: PackDisplay,
    senders: Sequence[RecordedRuns],
) -> tuple[list[Round], Outcome]:
    pack_seeds = plan.record.pack_seeds

    def watch(number: int, packs: Sequence[Pack]) -> Watch:
        runs = sum(len(pack.runs) for pack in packs)
        say(f"round {number} of {rule.rounds}: {runs:,} run{'s' * (runs != 1)}")
        name = f"round{number}"
        return and_send(display.begin(packs), plan.out / name, f"{plan.group}-{name}", senders)

    return halve(plan.out, plan.candidates, rule, machine, plan.evaluation, pack_seeds, watch)


def _ranked(out: Path, candidates: Mapping[str, RunSpec], at: float) -> list[tuple[str, float]]:
    """Runs with their scores, the best first; those without a test at that length are left out."""
    scores: list[tuple[str, float]] = []
    for name in candidates:
        try:
            scores.append((name, joint_accuracy(out / name, at)))
        except OutlastError:
            continue  # not at its end, too long to be tested, or text
    return sorted(scores, key=lambda pair: -pair[1])


def _of_round(last: Round) -> list[tuple[str, float]]:
    return [(name, score) for name in last.kept if (score := last.scores[name]) is not None]


def _show_best(best: Sequence[tuple[str, float]], at: float, left_out: int = 0) -> None:
    if left_out:
        say(f"{left_out:,} of the runs have no score at {at:g} x: not tested there, or text")
    if not best:
        return
    say("")
    columns = [Column("run"), Column(f"joint accuracy at {at:g} x", "number")]
    show_table(columns, [(name, f"{score:.3f}") for name, score in best[:BEST]])
    if len(best) > BEST:
        say(f"and {len(best) - BEST:,} more")


def conclude(outcome: Outcome) -> int:
    """Say which packs are not at their end; returns the exit code."""
    for reason in outcome.failed.values():
        say(wrapped(f"failed: {reason}"))
    if outcome.stopped:
        count = len(outcome.stopped)
        many = f"{count} pack{'s' * (count != 1)}"
        say(f"not finished: {many}; the same command goes on with {'it' if count == 1 else 'them'}")
        return STOPPED
    return FAILED if outcome.failed else 0
