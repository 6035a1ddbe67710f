"""Seeds are an axis: seed s among S is seed s alone, and its rows are nobody else's business.

For every registered item, over 50 steps: `tests/conformance/test_every_seed.py`. Here are all
seeds of a case at the usual learning rate, and methods that act on each at a time of its own.
"""

from __future__ import annotations

import pytest
import torch

from outlast.registry import methods, tasks
from outlast.specs import parse
from outlast.streams import stream, stream_seed
from outlast.train.seeds import SeedState, StackedModel
from tiny_runs import CPU, MODEL, TASK, InMemory, assert_each_seed_is_alone, in_threes

SEEDS = (3, 0, 7)
#: methods, and whether what they do comes to each seed at a time of its own
METHODS: list[tuple[tuple[str, ...], bool]] = [
    ((), False),
    (("dat(mode=skip, switch=9)",), False),
    (("dat(mode=freeze, switch=9)",), False),
    (("dat(mode=ramp, switch=6, ramp=9)",), False),
    (("dat(mode=detach, switch=9)",), False),
    (("dat(switch=below(0.82))",), True),
    (("dat(switch=below(0.000001), latest=6, otherwise=retry)", "ema(0.9)"), False),
    (("loss_order(switch=9)",), False),
    (("ema(0.9)",), False),
    (("curriculum(from=2, by=steps)",), False),
    (("curriculum(from=2, by=loss, level=0.85)",), True),
]
_COVERED = {parse(spec).name for specs, _ in METHODS for spec in specs}
METHODS += [((name,), False) for name in methods.names() if name not in _COVERED]
MODELS = [
    "2 x (lstm | attention(heads=2) > mlp) @ 16",
    "gru > mlp > attention(rope, heads=2) > mlp @ 16",
    "attention(alibi, heads=2) > mlp > attention(heads=2, weights=scalable) @ 16",
    "attention(tra, heads=2) > glu > attention(forget, heads=2, weights=entmax) @ 16, norm=rms, "
    "residual=normalised",
    "lstm(init=orthogonal, forget_bias=1) > mlp > attention(learned(ceiling=64), heads=2) @ 24",
]
TASKS = ["parity(length=6)", "flipflop(length=8)", "composite(layout=interleaved, length=4)"]


@pytest.mark.parametrize(("specs", "apart"), METHODS, ids=str)
def test_seed_among_others_is_the_seed_alone(specs: tuple[str, ...], apart: bool) -> None:
    among = assert_each_seed_is_alone(in_threes(*specs, seeds=SEEDS))
    first, second, _ = (among.losses(seed) for seed in SEEDS)
    assert first != second
    times = {tuple(among.events(seed)) for seed in SEEDS}
    assert len(times) > 1 or not apart, "the seeds do not part ways: this shows nothing"


@pytest.mark.parametrize("model", MODELS)
def test_seed_is_the_seed_alone_in_any_model(model: str) -> None:
    assert_each_seed_is_alone(in_threes("dat(switch=9)", seeds=SEEDS, model=model))


@pytest.mark.parametrize("task", TASKS)
def test_seed_is_the_seed_alone_on_any_task(task: str) -> None:
    model = "lstm > attention(heads=2) @ 16"
    assert_each_seed_is_alone(in_threes(seeds=SEEDS, task=task, model=model))


# ---- rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [MODEL, *MODELS])
def test_initial_weights_are_exactly_those_of_the_seed_alone(model: str) -> None:
    task = tasks.build(TASK)
    among = StackedModel(model, task, SEEDS, CPU)
    for row, seed in enumerate(SEEDS):
        alone = StackedModel(model, task, (seed,), CPU)
        assert torch.equal(among.table[row], alone.table[0])
    assert not torch.equal(among.table[0], among.table[1])


def test_restart_gives_one_seed_other_weights() -> None:
    model = StackedModel(MODEL, tasks.build(TASK), SEEDS, CPU)
    before = model.table.clone()
    model.reset(1, 1)
    assert torch.equal(model.table[[0, 2]], before[[0, 2]])
    assert not torch.equal(model.table[1], before[1])
    model.reset(1, 0)
    assert torch.equal(model.table, before)


def seed_state() -> SeedState:
    """Seeds with an average, after some steps."""
    return InMemory(in_threes("ema(0.9)", seeds=SEEDS)).steps(3).trainer.seeds


def assert_rows_are(seeds: SeedState, rows: list[int], saved: list[torch.Tensor]) -> None:
    for table, values in zip(seeds.read(rows), saved, strict=True):
        assert torch.equal(table, values)


@pytest.mark.parametrize(
    ("rows", "indices"), [(slice(None), [0, 1, 2]), (slice(1, 3), [1, 2]), ([2, 0], [2, 0])]
)
def test_rows_that_were_read_can_be_written_back(
    rows: slice | list[int], indices: list[int]
) -> None:
    seeds = seed_state()
    saved, whole = seeds.read(rows), seeds.read()
    for table in seeds._all_tables():
        table.data += 1
    assert_rows_are(seeds, indices, [values + 1 for values in saved])  # what was read is a copy
    seeds.write(saved, rows)
    assert_rows_are(seeds, indices, saved)
    others = [row for row in range(3) if row not in indices]
    assert_rows_are(seeds, others, [values[others] + 1 for values in whole])


def test_slice_of_rows_is_a_view_and_a_list_of_rows_a_copy() -> None:
    seeds = seed_state()
    view, copy, before = seeds.part(slice(1, 3)), seeds.part([1, 2]), seeds.read()
    assert view.model.seeds == copy.model.seeds == SEEDS[1:]
    copy.write([values + 1 for values in copy.read()])
    assert_rows_are(seeds, [0, 1, 2], before)
    view.write(copy.read())
    assert_rows_are(seeds, [1, 2], [values[1:] + 1 for values in before])
    assert_rows_are(seeds, [0], [values[:1] for values in before])


def test_row_brings_the_constants_of_its_run() -> None:
    runs = [
        in_threes(seeds=(0,), max_grad_norm=0.1, weight_decay=0.5),
        in_threes("ema", seeds=(1,)),
    ]
    seeds = InMemory(*runs).trainer.seeds
    seeds.write(seeds.read([0]), [1])
    optimiser = seeds.optimiser
    for table in (optimiser.max_grad_norm, optimiser.weight_decay, seeds.average_rate):
        assert table[0] == table[1]


# ---- streams of random numbers -----------------------------------------------------------------


def test_global_random_state_is_neither_used_nor_moved() -> None:
    tables = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        run = InMemory(in_threes("ema(0.9)", seeds=(0,))).steps(10)
        assert torch.equal(torch.get_rng_state(), before)
        tables.append(run.trainer.seeds.model.table)
    assert torch.equal(*tables)


def test_streams_are_told_apart_by_name_and_numbers() -> None:
    keys = [("data", 1, 23), ("data", 12, 3), ("data", 123), ("init", 1, 23), ("data", 1, 2, 3)]
    assert len({stream_seed(*key) for key in keys}) == len(keys)
    assert stream_seed("data", 1, 23) == stream_seed("data", 1, 23)
    assert all(0 <= stream_seed("data", n) < 2**63 for n in range(100))
    draws = [torch.rand(3, generator=stream(CPU, "data", 4)) for _ in range(2)]
    assert torch.equal(*draws)
