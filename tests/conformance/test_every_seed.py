"""Seed s of S is seed s alone, for every registered mixer, scheme, weights and method.

The same data, the same initial weights, and after 100 steps the same weights to float32 rounding.
What else belongs to seeds as an axis is in `tests/train/test_seeds.py`.
"""

from __future__ import annotations

import pytest
import torch
from subjects import MIXERS, plain_specs

from outlast.registry import methods, mixers
from tiny_runs import InMemory, tiny

SEEDS, STEPS, BLOCK = (3, 0, 7), 100, 20
#: a mixer by itself on a task of few tokens; those spelt in two ways once
MODELS = list({mixers.canonical(s.spec): f"{s.spec} @ {s.width}" for s in MIXERS}.values())
HYBRID = "lstm > attention(rope, heads=2) @ 16"
SHORT, COMPOSITE = "parity(length=4)", "composite(modulus=2, keys=8, queries=1, length=4)"
#: every method by default, and what happens in the course of so few steps
METHODS = [
    *plain_specs(methods),
    "dat(switch=40, rewarm=20)",
    "dat(mode=freeze, switch=40, rewarm=20)",
    "dat(mode=ramp, switch=40, ramp=40)",
    "dat(mode=detach, switch=40)",
    "loss_order(switch=40)",
    "curriculum(from=2)",
    "ema(0.9)",
]
#: Adam makes a whole step of a gradient that is nothing but rounding, so the steps are small ones:
#: a weight moves by 1e-2 in all, and the tolerance is half of one step. Seen on x86, one thread: no
#: difference at all; on longer sequences `fire` had up to 1.5e-5
RATE, TOLERANCE = 1e-4, 5e-5


def in_memory(task: str, model: str, *specs: str, seeds: tuple[int, ...] = SEEDS) -> InMemory:
    settings = {
        "steps": STEPS, "steps_per_block": BLOCK, "checkpoint_every": BLOCK, "batch_size": 4,
        "lr": RATE, "warmup": 0, "probe_every": 0,
    }  # fmt: skip
    return InMemory(tiny(*specs, task=task, model=model, seeds=seeds, **settings))


def assert_last_seed_is_the_same_alone(*lines: str) -> None:
    among, alone = in_memory(*lines), in_memory(*lines, seeds=SEEDS[-1:])
    initial = table(among)[-1].clone()
    assert torch.equal(table(alone)[0], initial)
    for one, other in zip(*(first_data(run) for run in (among, alone)), strict=True):
        assert torch.equal(one[:, -1], other[:, 0])
    among.steps(STEPS)
    alone.steps(STEPS)
    assert among.events(SEEDS[-1]) == alone.events(SEEDS[-1])
    torch.testing.assert_close(table(among)[-1], table(alone)[0], rtol=0, atol=TOLERANCE)
    weights = among.run.test_weights()
    for name, weight in alone.run.test_weights().items():
        torch.testing.assert_close(weights[name][-1], weight[0], rtol=0, atol=TOLERANCE)
    change = (table(alone)[0] - initial).abs().max()
    assert change > 50 * TOLERANCE, "it hardly learned: this shows nothing"


def table(run: InMemory) -> torch.Tensor:
    return run.trainer.seeds.model.table


def first_data(run: InMemory) -> tuple[torch.Tensor, ...]:
    _, data = run.run.next_block()
    return data.inputs, data.targets, data.part


@pytest.mark.parametrize("model", MODELS)
def test_seed_is_the_same_alone_with_every_mixer_scheme_and_weights(model: str) -> None:
    assert_last_seed_is_the_same_alone(SHORT, model)


@pytest.mark.parametrize("spec", METHODS)
def test_seed_is_the_same_alone_with_every_method(spec: str) -> None:
    assert_last_seed_is_the_same_alone(COMPOSITE, HYBRID, spec)
