"""Seed s of S is seed s alone, for every registered mixer, scheme, weights and method.

The same data, the same initial weights, and after 100 steps the same weights to float32 rounding.
What else belongs to seeds as an axis is in `tests/train/test_seeds_axis.py`.
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


def made(task: str, model: str, *specs: str, seeds: tuple[int, ...] = SEEDS) -> InMemory:
    settings = {"steps": STEPS, "block": BLOCK, "checkpoint": BLOCK, "batch": 4, "lr": RATE}
    run = tiny(*specs, task=task, model=model, seeds=seeds, warmup=0, probe_every=0, **settings)
    return InMemory(run)


def assert_alone_is_among(*lines: str) -> None:
    among, alone = made(*lines), made(*lines, seeds=SEEDS[-1:])
    begun = among.trainer.stack.table[-1].clone()
    assert torch.equal(alone.trainer.stack.table[0], begun)
    for one, other in zip(*(first_data(run) for run in (among, alone)), strict=True):
        assert torch.equal(one[:, -1], other[:, 0])
    among.steps(STEPS)
    alone.steps(STEPS)
    assert among.events(SEEDS[-1]) == alone.events(SEEDS[-1])
    found, wanted = among.trainer.stack.table[-1], alone.trainer.stack.table[0]
    torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE)
    tested = [run.trainer.test_weights() for run in (among, alone)]
    for name, weights in tested[1].items():
        torch.testing.assert_close(tested[0][name][-1], weights[0], rtol=0, atol=TOLERANCE)
    assert (wanted - begun).abs().max() > 50 * TOLERANCE, "it hardly learned: this shows nothing"


def first_data(run: InMemory) -> tuple[torch.Tensor, ...]:
    _, data = run.trainer.next_block()
    return data.inputs, data.targets, data.part


@pytest.mark.parametrize("model", MODELS)
def test_whatever_the_mixer_the_scheme_and_the_weights(model: str) -> None:
    assert_alone_is_among(SHORT, model)


@pytest.mark.parametrize("spec", METHODS)
def test_whatever_the_method(spec: str) -> None:
    assert_alone_is_among(COMPOSITE, HYBRID, spec)
