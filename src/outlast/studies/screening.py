"""The screen of a study: its candidates by successive halving, in a folder of their own.

::

    study/
      study.json               has the scores of all rounds and the survivors
      screen/                  a sweep by halving: sweep.json, halving.json, round1/, round2/ ...
      ARM/                     each survivor, trained anew over the seeds of the study

Given again, the same screen goes on where it was stopped. Another one in the folder is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from outlast.errors import RunFolderError
from outlast.runs.folder import SWEEP, has_file
from outlast.runs.spec import RunSpec
from outlast.runs.study import RoundRecord, ScreenRecord
from outlast.studies.base import SCREEN, Arm, Screen, Study
from outlast.sweep.engine import Machine, Outcome, Watch
from outlast.sweep.halving import Round, check_halving, halve
from outlast.sweep.packs import Pack
from outlast.sweep.record import (
    SweepRecord,
    open_sweep,
    read_sweep,
    shared_by_all,
    usual_pack_seeds,
)
from outlast.workflow.create import canonical
from outlast.workflow.evaluate import Evaluation

#: what is told about the packs of a round, which is counted from 1
WatchRound = Callable[[int, Sequence[Pack]], Watch]


def run_screen(
    study: Study,
    screen: Screen,
    candidates: Mapping[str, RunSpec],
    out: Path,
    machine: Machine,
    watch: WatchRound,
) -> tuple[ScreenRecord | None, Outcome]:
    """Screen arms in the folder `out` of a study; None if it was stopped before its end."""
    check_halving(candidates, screen.halving)
    folder = out / SCREEN
    pack_seeds = usual_pack_seeds(folder, machine.on_gpus)
    evaluation = Evaluation((1.0, screen.halving.at), study.sequences, study.precision)
    record = SweepRecord(
        run={name: _written(run) for name, run in candidates.items()},
        halving=str(screen.halving),
        pack_seeds=pack_seeds,
        lengths=tuple(evaluation.ladder),
        sequences=study.sequences,
        precision=study.precision,
    )
    _check_candidates(folder, candidates)
    with open_sweep(folder, record):
        rounds, outcome = halve(
            folder, candidates, screen.halving, machine, evaluation, pack_seeds, watch
        )
    if len(rounds) < screen.halving.rounds:
        return None, outcome
    survivors = tuple(rounds[-1].kept[: screen.survivors])
    records = tuple(map(_round_record, rounds))
    return (
        ScreenRecord(at=screen.halving.at, seeds=screen.seeds, rounds=records, survivors=survivors),
        outcome,
    )


def _check_candidates(folder: Path, candidates: Mapping[str, RunSpec]) -> None:
    """Refuse a screen of other candidates in words that are shorter than all that they are."""
    if not has_file(folder, SWEEP):
        return
    screened = list(read_sweep(folder).run)
    others = {
        "has": [name for name in screened if name not in candidates],
        "lacks": [name for name in candidates if name not in screened],
    }
    words = [f"{verb} {', '.join(names)}" for verb, names in others.items() if names]
    if words:
        raise RunFolderError(
            f"{folder} is a screen of other candidates: it {' and '.join(words)}. Give the same "
            f"--with to go on with it, or choose another --out"
        )


def _written(run: RunSpec) -> str:
    """All that decides a candidate, so that another one is told from it."""
    values = shared_by_all(canonical(run))
    return ", ".join(f"{name}={value}" for name, value in values.items() if name != "label")


def _round_record(round_: Round) -> RoundRecord:
    run = next(iter(round_.runs.values()))
    return RoundRecord(len(run.seeds), run.settings.steps, dict(round_.scores))


def expected_arms(screen: Screen, candidates: Mapping[str, RunSpec]) -> list[Arm]:
    """Arms that take about as long as a screen: the first ones go on, as nobody knows which do.

    The survivors over all seeds of the study are left out.
    """
    arms, names = [], list(candidates)
    for number in range(1, screen.halving.rounds + 1):
        runs = {name: screen.halving.shortened(candidates[name], number) for name in names}
        arms += [Arm(f"{name}-{number}", run) for name, run in runs.items()]
        names = names[: screen.halving.count_kept(len(names))]
    return arms
