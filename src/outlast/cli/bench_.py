"""`outlast bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

#: the section that needs a run
TRAINED = "trained"


def main(
    name: Annotated[str, tyro.conf.Positional],
    sections: tuple[str, ...] = (),
    budget: float = 300.0,
    repeats: int = 20,
    device: str = "auto",
    out: Path | None = None,
    run: Path | None = None,
    layout: str | None = None,
) -> None:
    """Time something beside its peers, with the error of a result beside its time.

    Example: outlast bench tra --sections cpu --repeats 1

    Args:
        name: What to measure: tra, seeds or lstm.
        sections: Parts of it; by default all that the device can show in short time.
        budget: Seconds after which nothing new is begun.
        repeats: Turns of each side; the median is shown. Fewer than 20 are for trying out.
        device: auto, cpu, cuda, cuda:1 ...
        out: A .json file for the numbers; where a bench has a figure, it lies beside as PNG.
        run: The folder of a trained run, for the section `trained` of tra.
        layout: Of the hybrid in seeds: serial (lstm > attention > mlp), also if none is given, or
            parallel (lstm | attention > mlp).
    """
    import torch

    from outlast.bench import bench_module
    from outlast.bench.timing import REPEATS, Bench
    from outlast.cli.common import check_out
    from outlast.errors import bad_value
    from outlast.machine import pick_device
    from outlast.runs.folder import write_json

    module = bench_module(name)
    check_out(out)
    layouts: dict[str, str] = getattr(module, "LAYOUTS", {})
    if layout is not None and layout not in layouts:
        raise bad_value("layout", layout, " | ".join(layouts) or f"none for {name}")
    layout = layout or next(iter(layouts), "")
    where = pick_device(device)
    bench = Bench(where, budget, repeats, _say, run, layout)
    chosen = sections or module.default(where)
    able = getattr(module, "ON_CPU", module.default(where))
    for section in chosen:
        if section not in module.SECTIONS:
            raise bad_value("sections", section, " | ".join(module.SECTIONS))
        if where.type != "cuda" and section not in able:
            accepted = f"{' | '.join(able)} where there is no CUDA device"
            raise bad_value("sections", section, accepted)
    if run is not None and TRAINED not in chosen:
        asked = f"none without --sections {TRAINED}"
        raise bad_value("run", run, asked if TRAINED in module.SECTIONS else f"none for {name}")
    card = torch.cuda.get_device_name(where) if where.type == "cuda" else "CPU"
    facts = {"bench": name, "device": card, "torch": torch.__version__, "repeats": repeats}
    facts |= {"layout": layout} if layout else {}
    model = f"{layout}: {layouts[layout]}" if layout else ""
    trial = f" (for trying out, not for a record: fewer than {REPEATS} turns)"
    note = trial if repeats < REPEATS else ""
    what = f"{name} ({model})" if model else name
    _say(f"outlast bench {what}: {card}, torch {torch.__version__}, median of {repeats}{note}")
    if where.type == "cuda":
        module.prepare(bench, chosen)
    for section in chosen:
        try:
            module.SECTIONS[section](bench)
        finally:  # after each: a run that is stopped has kept what it knew
            if out is not None:
                write_json(out, facts | {"rows": bench.records()})
        if where.type == "cuda":
            torch.cuda.empty_cache()
    if out is not None and hasattr(module, "draw"):
        module.draw(bench.rows, out.with_suffix(".png"), model)


def _say(text: str) -> None:
    """A line on stdout, now: also in a file or a pipe it is there as soon as it is known."""
    import sys

    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
