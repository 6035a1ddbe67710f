"""`outlast reproduce`."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from outlast.studies import Arm, Study

#: the name of the line about all arms
IN_ALL = "the study"


def main(
    study: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")],
    scale: Literal["demo", "paper", "full"] = "demo",
    arms: tuple[str, ...] = (),
    with_: Annotated[tuple[str, ...], tyro.conf.arg(name="with"), tyro.conf.UseAppendAction] = (),
    seeds: str | None = None,
    steps: int | None = None,
    precision: Literal["auto", "fp32", "tf32", "bf16"] | None = None,
    keep_checkpoints: str | None = None,
    out: Path | None = None,
    device: str = "auto",
    devices: str | None = None,
    workers: int | None = None,
    together: bool | None = None,
    ray: str | None = None,
    gpus_per_pack: float | None = None,
    overwrite: bool = False,
    dry: bool = False,
    analyse: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="[NAME [NAME ...]]")] = None,
    track: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
) -> int:
    """Run a whole study, every arm over every seed, and make its page.

    Given again without --overwrite, the same command goes on where it was stopped. An arm that
    fails does not stop the others; the exit code is then 1. An arm whose every seed has diverged is
    a result, tested and named; the exit code is 1 if no arm has a sound seed. With --analyse the
    page also says why arms work or fail.

    Example: outlast reproduce dat --scale demo --dry

    Args:
        study: Which one: see "outlast list study".
        scale: demo runs on a laptop in minutes, paper wants a GPU; full, where there is no paper.
        arms: Names or patterns of arms, such as "serial4-*"; by default the study's headline. In a
            study with a screen, screen stands for the arms that survive it.
        with_: An item of yours that joins the screen, such as "attention(stick_breaking)",
            "my_recurrence(heads=2)" or "method=my_method", in the place of what the recipe has of
            its kind; may be given several times.
        seeds: Other seeds than the study's, such as 0-9.
        steps: Another number of steps than the study's, for all arms; schedules shrink with it.
        precision: Another precision of matmuls than the study's.
        keep_checkpoints: Weights kept along the way, for all arms, as for train: every=500.
        out: The study folder; by default runs/STUDY-SCALE.
        device: auto, cpu, cuda, cuda:1 ...
        devices: Several devices, such as all or cuda:0,cuda:1, in the place of --device.
        workers: Processes at the same time; by default one a core, or four on each GPU.
        together: Train arms of one model, task and batch as one; by default on a GPU.
        ray: Train on a Ray cluster, as for sweep: HOST:PORT, auto or local.
        gpus_per_pack: The share of a GPU that a process takes on the cluster, such as 0.25.
        overwrite: Start anew where an arm is already there.
        dry: Only say what would be run, and about how long it would take.
        analyse: Analyse every finished arm of the folder as outlast analyse does, for the page:
            with the analyses that the study names, or with these. What is there is not made again.
        track: A tracker that gets the curves of every arm too, such as tensorboard or
            "wandb(mode=offline)"; may be given several times.
    """
    from outlast.cli.analysing import analyse_arms, chosen_analyses, describe_analyses
    from outlast.cli.common import console, say, wrapped
    from outlast.cli.exit_codes import FAILED, STOPPED
    from outlast.cli.listener import tracked
    from outlast.cli.screening import check_screen, choose_arms, show_screen
    from outlast.cli.study_on_ray import check_place, run_on_ray
    from outlast.errors import bad_value
    from outlast.machine import pick_device, usable_threads
    from outlast.registry import studies
    from outlast.reporting.page import report
    from outlast.runs.folder import require_new_name
    from outlast.runs.spec import MOST_PROCESSES, read_seeds
    from outlast.specs import Spec
    from outlast.studies.base import SCREEN
    from outlast.studies.estimate import describe_tests, estimate
    from outlast.studies.progress import StudyProgress
    from outlast.studies.runner import ENDS, Update, run_study
    from outlast.studies.screening import expected_arms
    from outlast.sweep.devices import GPU_PACKS, LocalDevices, find_devices
    from outlast.workflow.progress import progress

    joining = (("with", list(with_)),) if with_ else ()
    spec = Spec(study, (), (("scale", scale), *joining))
    plan: Study = studies.entry(study).factory(**studies.bind(spec))
    wanted = read_seeds(seeds) if seeds else None
    changes: dict[str, Any] = {"steps": steps, "precision": precision}
    changes |= {"keep_checkpoints": keep_checkpoints}
    chosen = plan.choose(arms, wanted, **changes)
    analyses = [] if analyse is None else chosen_analyses(plan, analyse)
    screen = plan.screen if SCREEN in (arms or plan.default) else None
    candidates = plan.candidates(**changes) if screen else {}
    check_place(device, devices, workers, ray, gpus_per_pack, overwrite)
    folder = out or Path("runs") / f"{study}-{scale}"
    if screen is not None:
        check_screen(folder, overwrite)
    names = [str(pick_device(device))] if devices is None else find_devices(devices)
    picked = pick_device(names[0])
    usual = GPU_PACKS * len(names) if picked.type == "cuda" else max(usable_threads(), len(names))
    count = workers if workers is not None else usual
    if not 1 <= count <= MOST_PROCESSES:
        raise bad_value("workers", count, f"a whole number from 1 to {MOST_PROCESSES:,}")
    tracking = tracked(track)
    require_new_name(folder)
    console.print(f"[bold]{plan.title}[/bold] ({plan.scale})")
    say(wrapped(f"{plan.question}\n"))
    if screen is not None:
        show_screen(screen, candidates)
    screened = plan.choose(list(candidates), wanted, **changes) if candidates else []
    only_screened = [arm for arm in screened if arm not in chosen]
    _show_arms(chosen, only_screened)
    if dry:
        if screen is not None:  # nobody knows which survive
            later = [*expected_arms(screen, candidates), *only_screened[: screen.survivors]]
        else:
            later = []
        say(wrapped(str(estimate([*chosen, *later], picked, count))))
        if chosen:
            say(wrapped(describe_tests(chosen, plan)))
        if analyses:
            say(wrapped(describe_analyses(analyses)))
        return 0
    # what goes on with the study: --overwrite would start anew
    command = "outlast " + shlex.join(word for word in sys.argv[1:] if word != "--overwrite")
    choose = partial(choose_arms, plan, chosen, screened, candidates, folder, overwrite, command)
    if ray is not None:
        code = run_on_ray(plan, choose, folder, together, ray, gpus_per_pack, tracking)
        if code == 0:
            code = analyse_arms(analyses, folder, picked, workers)
            say(f"the page: {report([folder], folder / 'report').resolve().as_uri()}")
        return code
    # as many processes in all for a screen as for the arms of the study
    all_arms, lost = choose(LocalDevices(names, per_device=max(1, count // len(names))))
    if all_arms is None:
        return lost
    chosen = all_arms
    labels = {arm.name: arm.label for arm in chosen}
    errors: dict[str, dict[str, str]] = {"diverged": {}, "failed": {}}
    total = StudyProgress(chosen)
    with progress(console) as show:
        show(IN_ALL, total.total())

        def watch(update: Update) -> None:
            if update.state in errors and not update.words:
                errors[update.state][update.arm] = update.error
            for each in tracking if update.progress or update.state in ENDS else ():
                each.begin(folder / update.arm, group=folder.resolve().name)
                each.advance(folder / update.arm, update.progress.step if update.progress else None)
            if not update.words:
                show(labels[update.arm], update.progress or update.error or update.state)
                show(IN_ALL, total.take(update))
            elif update.arm == update.pack[0]:  # once for all of them
                others = f" and {len(update.pack) - 1} more" if len(update.pack) > 1 else ""
                # a line of its own: a bar would show it for a moment only
                say(f"{labels[update.arm]}{others}: {update.words}")

        unfinished = run_study(
            plan, chosen, folder, ",".join(names), count, overwrite, watch, together
        )
    stopped = [name for name in unfinished if name not in errors["failed"]]
    # who has asked to stop does not wait for analyses
    analysed = 0 if stopped else analyse_arms(analyses, folder, picked, workers)
    page = report([folder], folder / "report")
    for each in tracking:
        each.conclude([folder / name for name in labels if name not in unfinished], page.parent)
        each.finish("stopped" if unfinished else "finished")
    console.print()
    for state, by_arm in errors.items():
        for name, error in by_arm.items():
            say(f"{state}: {name}: {error}")
    if stopped:
        advice = "the same command goes on with them"
        if overwrite:
            advice = f"go on with: {command} (what was not yet begun anew is kept as it was)"
        say(f"not finished: {', '.join(stopped)}; {advice}")
    console.print(f"the page: {page.resolve().as_uri()}", soft_wrap=True)
    bad = lost or errors["failed"] or len(errors["diverged"]) == len(chosen)
    return FAILED if bad else STOPPED if stopped else analysed


def _show_arms(chosen: list[Arm], only_screened: list[Arm]) -> None:
    from outlast.cli.common import say
    from outlast.cli.tables import Column, show_table
    from outlast.errors import SpecError
    from outlast.workflow.create import canonical, describe

    rows = []
    for arm in [*chosen, *only_screened]:
        run = arm.run
        try:  # all that would be wrong with it when it is created
            parameters = describe(canonical(run)).parameters
        except SpecError as error:
            raise SpecError(f"arm {arm.name}: {error}") from None
        seeds = "screen" if arm in only_screened else str(len(run.seeds))
        counts = (f"{parameters:,}", f"{run.settings.steps:,}", seeds)
        rows.append((arm.name, run.model, " + ".join(run.methods), *counts))
    columns = [Column("arm", "name"), Column("model", rank=2), Column("method", rank=1)]
    columns += [Column("parameters", "number", 3)]
    show_table([*columns, Column("steps", "number"), Column("seeds", "number")], rows)
    say("")
