"""Time of a training step against the number of seeds trained together, in one process.

    python benchmarks/seeds.py --seeds 1 5 10 20 40

The peer is the same program with one seed. Prints milliseconds a step, seed-steps a second and the
gain over one seed at a time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from outlast.train.fleet import Fleet
from outlast.train.session import begin, pick_device, precision
from outlast.train.settings import RunSpec, Settings

BLOCKS = 3


def measure(model: str, seeds: int, device: torch.device) -> float:
    """Seconds a step, over a few blocks after a warm-up."""
    settings = Settings(steps=10_000, probe=0)
    run = RunSpec("composite", model, (), tuple(range(seeds)), settings)
    with tempfile.TemporaryDirectory() as folder, precision("auto", device):
        begin(run, Path(folder), device)
        fleet = Fleet([(run, Path(folder))], device)
        for _ in range(2):
            fleet.block()  # the data and the host's look are part of a step
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(BLOCKS):
            fleet.block()  # ends with a copy to the host, so the device is done
        return (time.perf_counter() - started) / (BLOCKS * settings.block)


def main() -> None:
    """Measure each number of seeds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="4 x (lstm | attention > mlp)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 5, 10, 20, 40])
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    device = pick_device(given.device)
    alone = measure(given.model, 1, device)
    print("| seeds | ms a step | seed-steps/s | gain over one at a time |\n|---|---|---|---|")
    for seeds in given.seeds:
        seconds = measure(given.model, seeds, device)
        rate, gain = seeds / seconds, alone * seeds / seconds
        print(f"| {seeds} | {1e3 * seconds:.1f} | {rate:.0f} | {gain:.1f} x |")


if __name__ == "__main__":
    main()
