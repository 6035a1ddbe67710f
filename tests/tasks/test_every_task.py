"""What every registered task must hold to, a plug-in's included."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from outlast import registry
from outlast.tasks import IGNORE, Batch, Task

# Versions beyond the default worth a test; a task not named here is tested in its default.
VERSIONS = {
    "modsum": ["modsum(modulus=2)", "modsum(modulus=7, supervision=outcome, length=5)"],
    "parity": ["parity(supervision=outcome)"],
    "entangled_parity": [
        "entangled_parity(keys=30, supervision=outcome)",
        "entangled_parity(queries=0.0, keys=25)",
        "entangled_parity(queries=1.0)",
    ],
    "recall": ["recall(keys=9, values=2, queries=1, length=9)"],
    "composite": [
        "composite(keys=25, queries=1)",
        "composite(layout=chained, keys=40)",
        "composite(layout=interleaved, keys=40)",
        "composite(modulus=3, layout=interleaved, supervision=outcome, queries=2)",
        "composite(layout=chained, supervision=outcome)",
    ],
    "copy": ["copy(signs=2, length=9)"],
    "flipflop": [
        "flipflop(length=16, ignore=0.0)",
        "flipflop(length=4, ignore=1.0)",
        "flipflop(length=8, answers=tokens)",
    ],
}
SPECS = [s for name in registry.tasks.names() for s in (name, *VERSIONS.get(name, []))]
every_task = pytest.mark.parametrize("task", [registry.tasks.build(s) for s in SPECS], ids=SPECS)
seeds = st.integers(0, 2**31)


def generator(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def same(one: Batch, two: Batch) -> bool:
    """Equal in values, shapes and dtypes."""
    names = ("inputs", "targets", "part")
    pairs = [(getattr(one, name), getattr(two, name)) for name in names]
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)


def small_lengths(task: Task, most: int = 10) -> st.SearchStrategy[int]:
    low, high = task.shortest, task.shortest + most * task.multiple
    high = high if task.ceiling is None else min(high, task.ceiling)
    return st.integers(low // task.multiple, high // task.multiple).map(lambda n: n * task.multiple)


def small_ranges(task: Task) -> st.SearchStrategy[int | tuple[int, int]]:
    one = small_lengths(task)
    return one | st.tuples(one, one).map(sorted).map(tuple)


@every_task
@settings(max_examples=12, deadline=None)
@given(data=st.data(), seed=seeds, batch=st.integers(1, 6))
def test_sample_agrees_with_solve(task, data, seed, batch):
    length = data.draw(small_ranges(task))
    drawn = task.sample(length, batch, generator(seed))
    longest = length if isinstance(length, int) else length[1]
    for tensor, dtype in zip(
        (drawn.inputs, drawn.targets, drawn.part),
        (torch.int64, torch.int64, torch.int8),
        strict=True,
    ):
        assert tensor.shape == (batch, task.tokens(longest))
        assert tensor.dtype == dtype
        assert tensor.is_contiguous()
    for inputs, targets, part in zip(drawn.inputs, drawn.targets, drawn.part, strict=True):
        solved = [IGNORE if answer is None else answer for answer in task.solve(inputs.tolist())]
        assert targets.tolist() == solved
        assert ((part == -1) == (targets == IGNORE)).all()
        assert {task.parts[p] for p in part.tolist() if p >= 0} >= set(task.asked)


@every_task
def test_ids_stay_within_the_vocabulary(task):
    drawn = task.sample(task.lengths, 32, generator())
    asked = drawn.targets[drawn.targets != IGNORE]
    assert 0 <= drawn.inputs.min() <= drawn.inputs.max() < task.vocabulary
    assert 0 <= asked.min() <= asked.max() < task.classes <= task.vocabulary
    assert -1 <= drawn.part.min() <= drawn.part.max() < len(task.parts)


@every_task
def test_every_part_is_used_when_trained(task):
    part = task.sample(task.lengths, 64, generator()).part
    assert set(part.unique().tolist()) - {-1} == set(range(len(task.parts)))
    assert set(task.auxiliary) < set(task.parts)


@every_task
def test_sample_depends_on_the_generator_alone(task):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = task.sample(task.lengths, 16, generator(3))
    torch.manual_seed(2)
    again = task.sample(task.lengths, 16, generator(3))
    assert same(first, again)
    torch.manual_seed(1)
    task.sample(task.lengths, 2, generator())
    assert torch.equal(before, torch.get_rng_state()), "the global random state was touched"


@every_task
def test_different_draws_differ(task):
    stream = generator(3)
    one, two = (task.sample(task.lengths, 16, stream).inputs for _ in range(2))
    other = task.sample(task.lengths, 16, generator(4)).inputs
    assert not torch.equal(one, two)
    assert not torch.equal(one, other)


@every_task
def test_range_draws_every_length(task):
    low, step = task.shortest, task.multiple
    high = low + 3 * step
    drawn = task.sample((low, high), 200, generator())
    ends = {max(i for i, p in enumerate(row) if p >= 0) for row in drawn.part.tolist()}
    assert len(ends) >= 4


@every_task
def test_impossible_length_is_refused(task):
    with pytest.raises(
        ValueError, match=rf"length={task.shortest - 1}: expected .*{task.shortest}"
    ):
        task.sample(task.shortest - 1, 1, generator())
    with pytest.raises(ValueError, match="length=8-6: expected"):
        task.sample((8, 6), 1, generator())
    if task.ceiling is not None:
        beyond = task.ceiling + task.multiple
        with pytest.raises(ValueError, match=rf"length={beyond}: expected .*to {task.ceiling}"):
            task.sample(beyond, 1, generator())


@every_task
def test_ceiling_itself_can_be_sampled(task):
    if task.ceiling is not None:
        task.sample(task.ceiling, 1, generator())


@every_task
def test_words_lengths_and_chance_levels_are_consistent(task):
    words = [task.word(token) for token in range(task.vocabulary)]
    assert len(set(words)) == task.vocabulary
    assert not any(" " in word for word in words)
    assert task.shortest <= task.lengths[0] <= task.lengths[1]
    assert all(0 < task.chance_level(part) < 1 for part in task.parts)
    assert task.asked


@every_task
def test_spec_of_a_task_builds_the_same_task(task):
    again = registry.tasks.build(str(task.spec))
    assert again.spec == task.spec
    one, two = (t.sample(t.lengths, 4, generator(5)).inputs for t in (task, again))
    assert torch.equal(one, two)


@every_task
def test_variants_fit_a_model_of_the_task(task):
    for spec in task.variants.values():
        variant = registry.tasks.build(spec)
        assert (variant.vocabulary, variant.classes) == (task.vocabulary, task.classes)
        assert variant.lengths == task.lengths


@every_task
def test_stream_continues_one_generator(task):
    stream = task.stream(3, seed=7)
    ours = generator(7)
    for _ in range(2):
        assert torch.equal(next(stream).inputs, task.sample(task.lengths, 3, ours).inputs)


class Unwaiting(TorchDispatchMode):
    """Refuses operations whose result the host must wait for, without needing a GPU to see it."""

    waits = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "is_nonzero", "equal")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in self.waits, f"{name} makes the host wait"
        return func(*args, **(kwargs or {}))


@every_task
def test_sampling_never_makes_the_host_wait(task):
    with Unwaiting():
        task.sample(task.lengths, 8, generator())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@every_task
def test_sampling_on_a_gpu_never_waits(task):
    stream = generator(0, "cuda")
    task.sample(task.lengths, 8, stream)
    torch.cuda.set_sync_debug_mode("error")
    try:
        drawn = task.sample(task.lengths, 8, stream)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert drawn.inputs.is_cuda
    for inputs, targets in zip(drawn.inputs.tolist(), drawn.targets.tolist(), strict=True):
        assert targets == [IGNORE if a is None else a for a in task.solve(inputs)]


def check_joint_samples(task: Task, length: int | tuple[int, int], batch: int, device: str) -> None:
    joint = task.sample_each(length, batch, [generator(seed, device) for seed in (5, 2, 9)])
    for row, seed in enumerate((5, 2, 9)):
        alone = task.sample(length, batch, generator(seed, device))
        assert same(joint.map(lambda table, row=row: table[row]), alone)


@every_task
@pytest.mark.parametrize("ranged", [False, True])
def test_joint_samples_equal_each_seed_alone(task, ranged):
    check_joint_samples(task, task.lengths if ranged else task.lengths[1], 6, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@every_task
def test_joint_samples_on_a_gpu_equal_each_seed_alone(task):
    # an odd number of rows, and more than one thread block draws
    check_joint_samples(task, task.lengths, 777, "cuda")


@every_task
def test_generator_advances_beside_others_as_alone(task):
    beside, alone = generator(3), generator(3)
    task.sample_each(task.lengths, 4, [generator(1), beside])
    task.sample(task.lengths, 4, alone)
    assert torch.equal(beside.get_state(), alone.get_state())


class Torn(registry.tasks.entry("copy").factory):
    """A plug-in that draws in its own way."""

    def sample(self, length, batch, generator):
        drawn = super().sample(length, batch, generator)
        torch.rand(1, generator=generator)
        return drawn


def test_sampler_with_its_own_draws_is_sampled_seed_by_seed():
    task = Torn(signs=4, length=5)
    assert not task.samples_jointly
    assert registry.tasks.build("copy").samples_jointly
    many = task.sample_each(5, 3, [generator(1), generator(2)])
    for row, seed in enumerate((1, 2)):
        assert torch.equal(many.inputs[row], task.sample(5, 3, generator(seed)).inputs)


VIEWS = ("view", "unbind", "slice", "select", "expand", "detach", "alias", "split", "as_strided")


class Counting(TorchDispatchMode):
    """Counts the operations that a device would run: views are free."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += func.overloadpacket.__name__ not in VIEWS
        return func(*args, **(kwargs or {}))


@every_task
def test_another_seed_adds_only_its_draws(task):
    """If the task samples jointly; a task has a handful of draws."""
    calls = {}
    for seeds in (1, 9):
        with Counting() as counting:
            task.sample_each(task.lengths, 2, [generator(seed) for seed in range(seeds)])
        calls[seeds] = counting.calls
    if task.samples_jointly:
        assert calls[9] - calls[1] <= 8 * 7 < 8 * calls[1] / 2
