"""`outlast resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro


def main(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")],
    beside: Annotated[tuple[Path, ...], tyro.conf.Positional] = (),
    seeds: str | None = None,
    out: Path | None = None,
    device: str = "auto",
    seeds_at_once: int | None = None,
    processes: int | None = None,
    track: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
) -> int:
    """Go on with a run that was stopped or killed; the result is the same as if it had not been.

    Several runs of one model, task and batch are trained together, as are those of a grid; of a
    folder with several grids in it, one after the other. With --seeds some seeds of a run go on as
    a run of their own, and the run itself is left as it is.

    Example: outlast resume runs/parity

    Args:
        folder: The run folder, or the folder of a grid.
        beside: Folders of other runs or grids, to be trained together with it.
        seeds: Seeds to go on with, such as 0,3; needs --out.
        out: The run folder to make for those seeds.
        device: auto, cpu, cuda, cuda:1 ...
        seeds_at_once: Seeds stepped at once from here on, as for train; by default as on record.
        processes: Processes on the CPU, likewise. Either changes the result by rounding alone.
        track: A tracker, as for train; it gets what it does not have yet, of a finished run too.
    """
    from outlast.cli.listener import ConsoleListener, tracked
    from outlast.errors import bad_value, incompatible
    from outlast.machine import pick_device
    from outlast.runs.grids import packs_of, run_folders
    from outlast.runs.spec import Settings, read_seeds
    from outlast.workflow.subset import take_seeds
    from outlast.workflow.train import Listeners, train_and_evaluate

    # a bad number is an error before a folder is made
    Settings(seeds_at_once=seeds_at_once or 0, processes=processes or 0)
    tracking = tracked(track)
    picked = pick_device(device)
    named = (folder, *beside)
    folders, written = [run for f in named for run in run_folders(f)], " ".join(map(str, named))
    if len({f.resolve() for f in folders}) < len(folders):
        raise bad_value("folder", written, "different run folders")
    packs = [folders] if beside else packs_of(folders)
    if seeds is not None or out is not None:
        if len(folders) > 1:
            reason = "seeds are taken out of one run"
            raise incompatible("--seeds and --out", f"several runs ({written})", reason)
        if seeds is None:
            raise bad_value("seeds", "none", f"those that are to go on in --out {out}, such as 0,3")
        if out is None:
            accepted = f"a new folder for the run of --seeds {seeds}, such as --out {folder}-seeds"
            raise bad_value("out", "none", accepted)
        take_seeds(folder, read_seeds(seeds), out)
        named, folders, packs = (out,), [out], [[out]]
    with ConsoleListener(folders, named) as listener:
        for pack in packs:
            everyone = Listeners([listener, *tracking])
            outcome = train_and_evaluate(
                pack, picked, everyone, seeds_at_once=seeds_at_once, processes=processes
            )
            if not outcome.ended:
                break
    return listener.exit_code
