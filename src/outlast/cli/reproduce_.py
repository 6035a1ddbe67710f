"""`outlast reproduce`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from outlast.studies import Arm, Study

#: the name of the line about all arms
IN_ALL = "the study"


def main(
    study: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")],
    scale: Literal["demo", "paper"] = "demo",
    arms: tuple[str, ...] = (),
    seeds: str | None = None,
    steps: int | None = None,
    precision: Literal["auto", "fp32", "tf32", "bf16"] | None = None,
    keep_checkpoints: str | None = None,
    out: Path | None = None,
    device: str = "auto",
    workers: int | None = None,
    together: bool | None = None,
    overwrite: bool = False,
    dry: bool = False,
) -> int:
    """Run a whole study, every arm over every seed, and make its page.

    Given again without --overwrite, the same command goes on where it was stopped. An arm that
    fails does not stop the others; the exit code is then 1. An arm whose every seed has diverged is
    a result, tested and named; the exit code is 1 if no arm has a sound seed.

    Example: outlast reproduce dat --scale demo --dry

    Args:
        study: Which one: see "outlast list study".
        scale: demo runs on a laptop in minutes, paper wants a GPU.
        arms: Names or patterns of arms, such as "serial4-*"; by default the study's headline.
        seeds: Other seeds than the study's, such as 0-9.
        steps: Another number of steps than the study's, for all arms; schedules shrink with it.
        precision: Another precision of matmuls than the study's.
        keep_checkpoints: Weights kept along the way, for all arms, as for train: every=500.
        out: The study folder; by default runs/STUDY-SCALE.
        device: auto, cpu, cuda, cuda:1 ...
        workers: Processes at the same time; by default one a core, or four on a GPU.
        together: Train arms of one model, task and batch as one; by default on a GPU.
        overwrite: Start anew where an arm is already there.
        dry: Only say what would be run, and about how long it would take.
    """
    from outlast.cli.common import console, say, wrapped
    from outlast.cli.exit_codes import FAILED, STOPPED
    from outlast.errors import bad_value
    from outlast.machine import pick_device, usable_threads
    from outlast.registry import studies
    from outlast.reporting.page import report
    from outlast.runs.folder import require_new_name
    from outlast.runs.records import write_study
    from outlast.runs.spec import MOST_PROCESSES, read_seeds
    from outlast.specs import Spec
    from outlast.studies.estimate import estimate
    from outlast.studies.progress import StudyProgress
    from outlast.studies.runner import Update, run_study, unfinished_arms
    from outlast.workflow.progress import progress

    spec = Spec(study, (), (("scale", scale),))
    plan: Study = studies.entry(study).factory(**studies.bind(spec))
    chosen = plan.choose(
        arms,
        read_seeds(seeds) if seeds else None,
        steps=steps,
        precision=precision,
        keep_checkpoints=keep_checkpoints,
    )
    picked = pick_device(device)
    count = workers if workers is not None else (4 if picked.type == "cuda" else usable_threads())
    if not 1 <= count <= MOST_PROCESSES:
        raise bad_value("workers", count, f"a whole number from 1 to {MOST_PROCESSES:,}")
    folder = out or Path("runs") / f"{study}-{scale}"
    require_new_name(folder)
    console.print(f"[bold]{plan.title}[/bold] ({plan.scale})")
    say(wrapped(f"{plan.question}\n"))
    _show_arms(chosen)
    if dry:
        say(wrapped(str(estimate(chosen, picked, count))))
        return 0
    # what goes on with the study: --overwrite would start anew
    command = "outlast " + shlex.join(word for word in sys.argv[1:] if word != "--overwrite")
    labels = {arm.name: arm.label for arm in chosen}
    present = [a.name for a in plan.arms if a.name in labels or (folder / a.name).is_dir()]
    unfinished_arms(chosen, folder, overwrite)  # what is in the way is an error now
    write_study(folder, plan.record(command, present))
    errors: dict[str, dict[str, str]] = {"diverged": {}, "failed": {}}
    total = StudyProgress(chosen)
    with progress(console) as show:
        show(IN_ALL, total.total())

        def watch(update: Update) -> None:
            if update.state in errors and not update.words:
                errors[update.state][update.arm] = update.error
            if not update.words:
                show(labels[update.arm], update.progress or update.error or update.state)
                show(IN_ALL, total.take(update))
            elif update.arm == update.pack[0]:  # once for all of them
                others = f" and {len(update.pack) - 1} more" if len(update.pack) > 1 else ""
                # a line of its own: a bar would show it for a moment only
                say(f"{labels[update.arm]}{others}: {update.words}")

        unfinished = run_study(plan, chosen, folder, str(picked), count, overwrite, watch, together)
    page = report([folder], folder / "report")
    console.print()
    for state, by_arm in errors.items():
        for name, error in by_arm.items():
            say(f"{state}: {name}: {error}")
    stopped = [name for name in unfinished if name not in errors["failed"]]
    if stopped:
        advice = "the same command goes on with them"
        if overwrite:
            advice = f"go on with: {command} (what was not yet begun anew is kept as it was)"
        say(f"not finished: {', '.join(stopped)}; {advice}")
    console.print(f"the page: {page.resolve().as_uri()}", soft_wrap=True)
    bad = errors["failed"] or len(errors["diverged"]) == len(chosen)
    return FAILED if bad else STOPPED if stopped else 0


def _show_arms(chosen: list[Arm]) -> None:
    from outlast.cli.common import say
    from outlast.cli.tables import Column, show_table
    from outlast.errors import SpecError
    from outlast.workflow.create import canonical, describe

    rows = []
    for arm in chosen:
        run = arm.run
        try:  # all that would be wrong with it when it is created
            parameters = describe(canonical(run)).parameters
        except SpecError as error:
            raise SpecError(f"arm {arm.name}: {error}") from None
        counts = (f"{parameters:,}", f"{run.settings.steps:,}", str(len(run.seeds)))
        rows.append((arm.name, run.model, " + ".join(run.methods), *counts))
    columns = [Column("arm", "name"), Column("model", rank=2), Column("method", rank=1)]
    columns += [Column("parameters", "number", 3)]
    show_table([*columns, Column("steps", "number"), Column("seeds", "number")], rows)
    say("")
