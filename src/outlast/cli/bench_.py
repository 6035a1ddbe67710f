"""`outlast bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro


def main(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
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
        name: What to measure: tra, seeds, lstm, llama (TRA in a Llama of transformers) or long
            (tests of 1,000 to 100,000 items).
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

    from outlast.bench.registry import find_benchmark
    from outlast.bench.timing import REPEATS, Bench
    from outlast.cli.common import check_out
    from outlast.machine import pick_device
    from outlast.runs.folder import write_json

    benchmark = find_benchmark(name)
    check_out(out)
    layout = benchmark.choose_layout(layout)
    chosen_device = pick_device(device)
    on_gpu = chosen_device.type == "cuda"
    bench = Bench(chosen_device, budget, repeats, _say, run, layout)
    chosen = benchmark.choose_sections(sections, chosen_device)
    benchmark.check_run(run, chosen)
    card = torch.cuda.get_device_name(chosen_device) if on_gpu else "CPU"
    facts = {"bench": name, "device": card, "torch": torch.__version__, "repeats": repeats}
    facts |= {"layout": layout} if layout else {}
    model = f"{layout}: {benchmark.layouts[layout]}" if layout else ""
    trial = f" (for trying out, not for a record: fewer than {REPEATS} turns)"
    note = trial if repeats < REPEATS else ""
    title = f"{name} ({model})" if model else name
    _say(f"outlast bench {title}: {card}, torch {torch.__version__}, median of {repeats}{note}")
    if on_gpu and benchmark.prepare is not None:
        benchmark.prepare(bench, chosen)
    for section in chosen:
        try:
            benchmark.sections[section](bench)
        finally:  # after each section: a run that is stopped keeps what it knows
            if out is not None:
                write_json(out, facts | {"rows": bench.records()})
        if on_gpu:
            torch.cuda.empty_cache()
    if out is not None and benchmark.draw is not None:
        benchmark.draw(bench.rows, out.with_suffix(".png"), model)


def _say(text: str) -> None:
    """A line on stdout, now: also in a file or a pipe it is there as soon as it is known.

    A terminal that is too narrow for it breaks it between two numbers.
    """
    import sys

    if sys.stdout.isatty():
        from outlast.cli.common import wrapped

        text = wrapped(text, "", "    ")
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
