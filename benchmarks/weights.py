"""What weights of attention cost in training, on a CPU: `python benchmarks/weights.py`.

The models are those of docs/findings/sharpness.md: the arms `weights-*` and `far-separate` of
`outlast reproduce reach --scale demo`. They differ in their attention alone. Each is trained
without delayed attention, so that attention is part of every step.

A time is that of a training step, from blocks of steps with their data, on one thread. It is CPU
time, so that other jobs of the machine count less. The models take turns. `against_softmax` is the
ratio to the plain softmax of the same turn: the median of all turns, the lowest and the highest.
`more_weights` counts the parameters beyond those of the plain softmax.

Numbers go to standard output, as one JSON line for each model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from outlast.runs.spec import RunSpec
from outlast.studies.reach import reach
from outlast.train.trainer import Trainer

SOFTMAX = "weights-softmax"


def runs() -> dict[str, RunSpec]:
    """The trainings of the page, by their arms; the plain softmax comes first."""
    arms = {arm.name: arm.run for arm in reach("demo").arms}
    weights = [name for name in arms if name.startswith("weights-")]
    return {name: arms[name] for name in (SOFTMAX, "far-separate", *weights)}


@contextmanager
def training(run: RunSpec, seeds: int, steps: int) -> Iterator[Trainer]:
    """A training without its method, in blocks of some steps."""
    settings = replace(
        run.settings, steps=10**6, steps_per_block=steps, probe_every=0, checkpoint_every=10**6
    )
    run = replace(run, methods=(), seeds=tuple(range(seeds)), settings=settings)
    with TemporaryDirectory() as folder:
        trainer = Trainer([(run, Path(folder))], torch.device("cpu"))
        trainer.train(blocks=1)  # what is made but once
        yield trainer


def seconds(trainer: Trainer, steps: int) -> float:
    """CPU seconds of a step."""
    start = time.process_time()
    trainer.train(blocks=1)
    return (time.process_time() - start) / steps


def measured(seeds: int, steps: int, repeats: int) -> Iterator[dict[str, object]]:
    """Each model against the plain softmax."""
    with ExitStack() as stack:
        trainers = {
            name: stack.enter_context(training(run, seeds, steps)) for name, run in runs().items()
        }
        turns = [
            {name: seconds(trainer, steps) for name, trainer in trainers.items()}
            for _ in range(repeats)
        ]
    sizes = {
        name: sum(weight.numel() for weight in trainer.seeds.model.model.parameters())
        for name, trainer in trainers.items()
    }
    for name, size in sizes.items():
        ratios = [turn[name] / turn[SOFTMAX] for turn in turns]
        spread = (statistics.median(ratios), min(ratios), max(ratios))
        yield {
            "arm": name,
            "ms": round(1e3 * statistics.median(turn[name] for turn in turns), 1),
            "against_softmax": [round(ratio, 2) for ratio in spread],
            "more_weights": size - sizes[SOFTMAX],
        }


def main(arguments: Sequence[str] | None = None) -> None:
    """Time all models in turns."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1, help="seeds that are trained together")
    parser.add_argument("--steps", type=int, default=10, help="steps of a block")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for row in measured(options.seeds, options.steps, options.repeats):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
