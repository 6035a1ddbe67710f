"""Seeds are an axis: seed s among S is seed s alone, and their data are nobody else's business.

For every registered item, over 50 steps: `tests/conformance/test_every_seed.py`. Here are all
seeds of a case at the usual learning rate, and methods that act on each at a time of its own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outlast.registry import methods, tasks
from outlast.runs.spec import RunSpec
from outlast.specs import parse
from outlast.streams import stream, stream_seed
from outlast.train.seeds import StackedModel
from tiny_runs import CPU, MODEL, SETTINGS, TASK, InMemory, assert_seed_is, tiny

SEEDS = (3, 0, 7)
METHODS: list[tuple[str, ...]] = [
    (),
    ("dat(mode=skip, switch=9)",),
    ("dat(mode=freeze, switch=9)",),
    ("dat(mode=ramp, switch=6, ramp=9)",),
    ("dat(mode=detach, switch=9)",),
    ("dat(switch=below(0.82))",),  # each seed at a time of its own
    ("dat(switch=below(0.000001), latest=6, otherwise=retry)", "ema(0.9)"),
    ("loss_order(switch=9)",),
    ("ema(0.9)",),
    ("curriculum(from=2, by=steps)",),
    ("curriculum(from=2, by=loss, level=0.85)",),  # each seed at a length of its own
]
_COVERED = {parse(m).name for specs in METHODS for m in specs}
METHODS += [(name,) for name in methods.names() if name not in _COVERED]
MODELS = [
    "2 x (lstm | attention(heads=2) > mlp) @ 16",
    "gru > mlp > attention(rope, heads=2) > mlp @ 16",
    "attention(alibi, heads=2) > mlp > attention(heads=2, weights=scalable) @ 16",
    "attention(tra, heads=2) > glu > attention(forget, heads=2, weights=entmax) @ 16, norm=rms, "
    "residual=normalised",
    "lstm(init=orthogonal, forget_bias=1) > mlp > attention(learned(ceiling=64), heads=2) @ 24",
]


def trainer(*specs: str, seeds: tuple[int, ...], **other: Any) -> InMemory:
    return InMemory(
        tiny(*specs, seeds=seeds, steps_per_block=3, probe_every=0, checkpoint_every=3, **other)
    )


def assert_alone_is_among(*specs: str, **other: Any) -> InMemory:
    among = trainer(*specs, seeds=SEEDS, **other).steps(18)
    for seed in SEEDS:
        assert_seed_is(among, trainer(*specs, seeds=(seed,), **other).steps(18), seed)
    return among


@pytest.mark.parametrize("specs", METHODS, ids=" + ".join)
def test_a_seed_among_others_is_the_seed_alone(specs: tuple[str, ...]) -> None:
    among = assert_alone_is_among(*specs)
    first, second, _ = (among.losses(seed) for seed in SEEDS)
    assert first != second


@pytest.mark.parametrize("model", MODELS)
def test_whatever_the_model(model: str) -> None:
    assert_alone_is_among("dat(switch=9)", model=model)


@pytest.mark.parametrize(
    "task", ["parity(length=6)", "flipflop(length=8)", "composite(layout=interleaved, length=4)"]
)
def test_whatever_the_task(task: str) -> None:
    assert_alone_is_among(task=task, model="lstm > attention(heads=2) @ 16")


def test_the_seeds_of_a_case_do_part_ways() -> None:
    """Else the cases that are about seeds at different times would show nothing."""
    apart = trainer("dat(switch=below(0.82))", seeds=SEEDS).steps(18)
    assert len({tuple(apart.events(seed)) for seed in SEEDS}) > 1
    apart = trainer("curriculum(from=2, by=loss, level=0.85)", seeds=SEEDS).steps(18)
    assert len({tuple(apart.events(seed)) for seed in SEEDS}) > 1


# ---- separate streams --------------------------------------------------------------------------


@pytest.mark.parametrize("model", [MODEL, *MODELS])
def test_initial_weights_are_exactly_those_of_the_seed_alone(model: str) -> None:
    task = tasks.build(TASK)
    among = StackedModel(model, task, SEEDS, CPU)
    for row, seed in enumerate(SEEDS):
        alone = StackedModel(model, task, (seed,), CPU)
        assert torch.equal(among.table[row], alone.table[0])
    assert not torch.equal(among.table[0], among.table[1])


def test_a_restart_has_weights_of_its_own() -> None:
    stack = StackedModel(MODEL, tasks.build(TASK), SEEDS, CPU)
    before = stack.table.clone()
    stack.reset(1, 1)
    assert torch.equal(stack.table[[0, 2]], before[[0, 2]])
    assert not torch.equal(stack.table[1], before[1])
    stack.reset(1, 0)
    assert torch.equal(stack.table, before)


def test_data_do_not_depend_on_the_other_seeds() -> None:
    among, alone = trainer(seeds=SEEDS).trainer, trainer(seeds=(7,)).trainer
    for begin in (0, 5, 25):
        many = among.data(begin, among.conductor.plan(begin, begin + 5))
        one = alone.data(begin, alone.conductor.plan(begin, begin + 5))
        for name in ("inputs", "targets", "part"):
            assert torch.equal(getattr(many, name)[:, 2], getattr(one, name)[:, 0])
        assert not torch.equal(many.inputs[:, 0], many.inputs[:, 1])
        assert not torch.equal(many.inputs[0], many.inputs[1])


def test_data_do_not_depend_on_the_model_or_the_methods() -> None:
    plain = trainer(seeds=(1,)).trainer
    other = trainer("ema(0.5)", seeds=(1,), model="gru @ 8").trainer
    one = plain.data(10, plain.conductor.plan(10, 15))
    two = other.data(10, other.conductor.plan(10, 15))
    assert torch.equal(one.inputs, two.inputs)


def test_data_are_fresh_in_every_block() -> None:
    run = trainer(seeds=(0,)).trainer
    blocks = [run.data(b, run.conductor.plan(b, b + 5)).inputs for b in (0, 5, 10)]
    assert not torch.equal(blocks[0], blocks[1])
    assert not torch.equal(blocks[1], blocks[2])


def test_global_random_state_is_neither_used_nor_moved() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = trainer("ema(0.9)", seeds=(0,)).steps(10)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    two = trainer("ema(0.9)", seeds=(0,)).steps(10)
    assert torch.equal(one.trainer.stack.table, two.trainer.stack.table)


def test_streams_are_told_apart_by_name_and_numbers() -> None:
    keys = [("data", 1, 23), ("data", 12, 3), ("data", 123), ("init", 1, 23), ("data", 1, 2, 3)]
    assert len({stream_seed(*key) for key in keys}) == len(keys)
    assert stream_seed("data", 1, 23) == stream_seed("data", 1, 23)
    assert all(0 <= stream_seed("data", n) < 2**63 for n in range(100))
    draws = [torch.rand(3, generator=stream(CPU, "data", 4)) for _ in range(2)]
    assert torch.equal(*draws)


def test_the_settings_of_these_tests_are_what_they_say() -> None:
    run = RunSpec(TASK, MODEL, (), SEEDS, SETTINGS)
    assert run.settings.steps >= 30
