"""`outlast train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from outlast.runs.spec import RunSpec, Settings


def main(
    task: str,
    model: str,
    out: Path,
    preset: str | None = None,
    method: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    start_from: Path | None = None,
    seeds: str = "0",
    grid: Annotated[tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction] = (),
    label: str = "",
    device: str = "auto",
    overwrite: bool = False,
    track: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    settings: Annotated[Settings, tyro.conf.arg(name="")] = Settings(),
) -> int:
    """Train a model on a task over several seeds, then measure it by length.

    Example: outlast train --task parity --model "lstm > mlp @ 16" --steps 100 --out runs/parity

    Args:
        task: What to learn, such as "composite(modulus=10)"; --preset and --start-from have one.
        model: The model line, such as "4 x (lstm > attention > mlp) @ 128", in quotation marks;
            --preset and --start-from have one.
        out: The run folder to make.
        preset: Task, model, method and settings in one word, such as reach, as far as they are not
            given: see "outlast list preset".
        method: What changes while training, such as "dat"; may be given several times. none is no
            method, where a preset has one.
        start_from: A finished run whose last weights the same seeds begin with. Task, model, seeds
            and precision are its own, as far as they are not given; the optimiser is fresh.
        seeds: Seeds and ranges of seeds, trained together: 0-4 or 0,2,5.
        grid: Settings or methods with several values, trained together, each as a run in its own
            folder in --out: lr=0.001,0.002 "method=none,dat,dat + ema(0.9)"; may be given several
            times.
        label: How the run is called in plots.
        device: auto, cpu, cuda, cuda:1 ...
        overwrite: Replace a run that is already in the folder.
        track: A tracker that gets the curves too, such as tensorboard or "wandb(mode=offline)"; may
            be given several times.
        settings: The numbers of training.
    """
    from outlast.cli.listener import ConsoleListener, tracked
    from outlast.errors import bad_value
    from outlast.machine import pick_device
    from outlast.runs.folder import is_text
    from outlast.runs.spec import read_methods, read_seeds
    from outlast.workflow.create import create_runs
    from outlast.workflow.grid import expand_grid
    from outlast.workflow.start import read_start
    from outlast.workflow.train import Listeners, train_and_evaluate

    picked = pick_device(device)
    if not all(grid):
        raise bad_value("grid", "", "settings and their values, such as lr=0.001,0.002")
    if not label and not is_text(out.name):
        raise bad_value("out", ascii(str(out)), "a name in UTF-8, or a --label for the plots")
    methods = read_methods(method)
    tracking = tracked(track)  # a tracker that cannot work is an error before a folder is made
    numbers = read_seeds(seeds)
    start = None if start_from is None else read_start(start_from, numbers)
    run = RunSpec(task, model, methods, numbers, settings, label or out.name, start)
    axes = [axis for several in grid for axis in several]
    runs = [(run, out)]
    if axes:
        runs = expand_grid(run, axes, out)
    folders = [folder for _, folder in runs]
    # their records say which runs they were created with, for resume to train them together
    pack = [folder.name for folder in folders] if axes else []
    create_runs(runs, picked, overwrite, out, pack)
    with ConsoleListener(folders, [out], (task, model)) as listener:
        train_and_evaluate(folders, picked, Listeners([listener, *tracking]))
    return listener.exit_code
