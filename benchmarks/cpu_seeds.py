"""Eight seeds of the demo's size on a CPU: stacked, one after the other, or over processes.

    python benchmarks/cpu_seeds.py --seeds 8 --processes 2

Every way trains the same seeds for the same number of steps; ways take turns, and the best turn of
each counts, as the machine may be shared. Prints seed-steps a second and the gain over one after
the other.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import torch

from outlast.train.fleet import Fleet
from outlast.train.session import keep_freed_memory
from outlast.train.settings import RunSpec, Settings

TASK = "composite(modulus=3, keys=64, queries=4, length=10)"
MODEL = "1 x (lstm > attention(heads=2) > mlp) @ {width}"
CPU = torch.device("cpu")


class Stacks:
    """Seeds in stacks of a size, stepped one stack after the other in this process."""

    def __init__(self, width: int, seeds: Sequence[int], together: int, steps: int) -> None:
        keep_freed_memory()
        self.home = tempfile.TemporaryDirectory()
        settings = Settings(steps=10**6, batch=32, block=steps, probe=0, checkpoint=steps)
        parts = [tuple(seeds[i : i + together]) for i in range(0, len(seeds), together)]
        runs = [RunSpec(TASK, MODEL.format(width=width), (), part, settings) for part in parts]
        self.fleets = [Fleet([(run, Path(self.home.name))], CPU) for run in runs]

    def turn(self) -> None:
        for fleet in self.fleets:
            fleet.block()


def _serve(line: object, threads: int, *spec: object) -> None:
    """A process that does a turn whenever it is asked to."""
    torch.set_num_threads(threads)
    stacks = Stacks(*spec)  # type: ignore[arg-type]
    while line.recv():  # type: ignore[attr-defined]
        stacks.turn()
        line.send(True)  # type: ignore[attr-defined]


class Processes:
    """Seeds dealt to processes, each a stack."""

    def __init__(
        self, width: int, seeds: Sequence[int], together: int, steps: int, count: int, threads: int
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.lines, self.processes = [], []
        for index in range(count):
            ours, theirs = context.Pipe()
            spec = (width, list(seeds)[index::count], together, steps)
            process = context.Process(target=_serve, args=(theirs, threads, *spec), daemon=True)
            process.start()
            self.lines.append(ours)
            self.processes.append(process)

    def turn(self) -> None:
        for line in self.lines:
            line.send(True)
        for line in self.lines:
            line.recv()

    def close(self) -> None:
        for line, process in zip(self.lines, self.processes, strict=True):
            line.send(False)
            process.join()


def measure(width: int, seeds: int, processes: int, steps: int, turns: int) -> dict[str, float]:
    """Seconds of the best turn of each way."""
    all_of, cores = list(range(seeds)), os.cpu_count() or 1
    share = max(1, cores // processes)
    ways = {
        f"one after the other, {cores} threads": Processes(width, all_of, 1, steps, 1, cores),
        f"stacked, {cores} threads": Processes(width, all_of, seeds, steps, 1, cores),
        f"{processes} processes, one after the other": Processes(
            width, all_of, 1, steps, processes, share
        ),
        f"{processes} processes, stacked": Processes(width, all_of, seeds, steps, processes, share),
    }
    best = dict.fromkeys(ways, float("inf"))
    for turn in range(turns + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            way.turn()
            if turn:  # the first is for what is done but once
                best[name] = min(best[name], time.perf_counter() - started)
    for way in ways.values():
        way.close()
    return best


def main() -> None:
    """Measure each width and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    print("| width | way | seed-steps/s | gain over one after the other |\n|---|---|---|---|")
    for width in given.widths:
        best = measure(width, given.seeds, given.processes, given.steps, given.turns)
        base = next(iter(best.values()))
        for name, seconds in best.items():
            rate = given.seeds * given.steps / seconds
            print(f"| {width} | {name} | {rate:.0f} | {base / seconds:.2f} x |", flush=True)


if __name__ == "__main__":
    main()
