"""How phase 1 of `dat` or `loss_order` ended for each seed of a run, as its events say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from outlast.errors import SpecError
from outlast.reporting.load import Run
from outlast.specs import parse


@dataclass(frozen=True)
class Phase:
    """How phase 1 ended for each seed. Seeds in ``parked`` were parked during it.

    ``scheduled`` has the step of each seed that switched at a step fixed from the start. Nothing
    is known about its convergence.
    """

    converged: tuple[int, ...]
    scheduled: dict[int, int]
    failed: tuple[int, ...]
    waiting: tuple[int, ...]
    parked: tuple[int, ...]
    restarts: int


def phase_of(run: Run) -> Phase | None:
    """The last event of each seed: a switch (and why), or a phase 1 given up."""
    outcome: dict[int, bool] = {}
    scheduled: dict[int, int] = {}
    by_schedule = _scheduled_methods(run.record.methods)
    for event in run.events:
        converged = event.details.get("converged")
        if event.event == "not converged":
            outcome[event.seed] = False
        elif event.event != "switch":
            continue
        elif (
            event.details.get("reason") == "schedule" or event.details.get("method") in by_schedule
        ):
            if event.step < run.record.settings.steps:  # an older run may name its last step
                scheduled[event.seed] = event.step
        elif isinstance(converged, bool):
            outcome[event.seed] = converged
    ended = outcome.keys() | scheduled.keys()
    if not ended:
        return None
    seeds = run.seeds or tuple(sorted(ended))
    return Phase(
        tuple(seed for seed in seeds if outcome.get(seed) is True),
        {seed: scheduled[seed] for seed in seeds if seed in scheduled},
        tuple(seed for seed in seeds if outcome.get(seed) is False),
        tuple(seed for seed in seeds if seed not in ended | run.parked.keys()),
        tuple(seed for seed in seeds if seed in run.parked and seed not in ended),
        sum(event.event == "restart" for event in run.events),
    )


def _scheduled_methods(lines: Iterable[str]) -> set[str]:
    """The methods that switch at a fixed step or share, by their lines.

    Older runs recorded such a switch as converged. Their lines tell.
    """
    names = set()
    for line in lines:
        try:
            spec = parse(line)
        except SpecError:
            continue
        if isinstance(dict(spec.kwargs).get("switch"), int | float):
            names.add(spec.name)
    return names
