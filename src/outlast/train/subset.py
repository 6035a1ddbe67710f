"""Some seeds of a run as a run of their own, from where they stand.

The rows of the checkpoint and the lines of the metrics are taken over as they are. On going on,
each seed is what it would have been in the whole run to float32 rounding (on the CPU and on a GPU
alike: products over fewer seeds may be summed in another order); with all seeds, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from outlast.errors import bad_value
from outlast.runs import (
    CHECKPOINT,
    METRICS,
    RUN,
    locked,
    read_metrics,
    read_run,
    write_json,
    write_text,
)
from outlast.train.checkpoint import load_checkpoint, save_checkpoint
from outlast.train.session import claim
from outlast.train.settings import RunSpec

#: what a checkpoint's state holds for each seed, in their order
BY_SEED = ("averaged", "methods", "probe", "parked", "succeeded", "streaks")


def take_seeds(folder: Path, seeds: Sequence[int], out: Path) -> None:
    """Make `out` the run folder of some seeds of the run in `folder`, which is left as it is."""
    record = read_run(folder)
    run = RunSpec.read(record)
    chosen = replace(run, seeds=tuple(seeds)).seeds  # one given twice is an error here
    shown = ",".join(map(str, chosen))
    if not set(chosen) <= set(run.seeds):
        have = ", ".join(map(str, run.seeds))
        raise bad_value("seeds", shown, f"some of those that {folder} has: {have}")
    rows = [run.seeds.index(seed) for seed in chosen]
    saved = load_checkpoint(folder) if (folder / CHECKPOINT).exists() else None
    if saved is not None and all(saved[1]["parked"][row] is not None for row in rows):
        raise bad_value("seeds", shown, "at least one that is not parked")
    with locked(out):
        claim(out, anew="")  # nothing here overwrites
        if saved is not None:
            tensors, state = saved
            lines = [
                line
                for line in read_metrics(folder)
                if line.get("seed") in chosen and line["step"] <= state["step"]
            ]
            write_text(out / METRICS, "".join(json.dumps(line) + "\n" for line in lines))
            state["run"] = state.get("run", {}) | {"seeds": list(chosen)}  # an older one has none
            state |= {name: [state[name][row] for row in rows] for name in BY_SEED}
            save_checkpoint(out, {name: table[rows] for name, table in tensors.items()}, state)
        # the record comes last: without it a folder is not taken for a run; it is in no other pack
        write_json(out / RUN, record | {"seeds": list(chosen), "pack": [out.name]})
