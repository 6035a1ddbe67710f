"""What every registered task must hold to, a plug-in's included."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast import registry
from outlast.tasks import IGNORE, Task
from outlast.testing import sampling
from outlast.testing.sampling import check_joint_samples
from outlast.testing.tasks import RULES, check_against_solver, generator

# Versions beyond the default worth a test; a task not named here is tested in its default.
VERSIONS = {
    "modsum": [
        "modsum(modulus=2)",
        "modsum(modulus=7, supervision=outcome, length=5)",
        "modsum(modulus=100)",
    ],
    "permutation": ["permutation(group=A5, supervision=outcome)", "permutation(group=S5)"],
    "parity": ["parity(supervision=outcome)"],
    "entangled_parity": [
        "entangled_parity(keys=30, supervision=outcome)",
        "entangled_parity(queries=0.0, keys=25)",
        "entangled_parity(queries=1.0)",
    ],
    "recall": [
        "recall(keys=9, values=2, queries=1, length=9)",
        "recall(keys=30, queries=3, fillers=4)",
    ],
    "dyck": ["dyck(k=5, depth=2)", "dyck(supervision=outcome, depth=3)"],
    "hierarchical_flipflop": [
        "hierarchical_flipflop(length=16, ignore=0.0, levels=3)",
        "hierarchical_flipflop(length=4, ignore=1.0, levels=1)",
    ],
    "regular": [
        # of each kind one: `test_regular` has them all
        *(f"regular(language={name})" for name in ("tomita2", "cycle_navigation", "d3", "p2_3")),
        "regular(language=abcde, supervision=outcome)",
        "regular(language=own, transitions=[[1, 0, 2], [1, 2, 0], [2, 2, 2]], accepting=[1])",
    ],
    "composite": [
        "composite(keys=25, queries=1)",
        "composite(layout=chained, keys=40)",
        "composite(layout=interleaved, keys=40)",
        "composite(modulus=3, layout=interleaved, supervision=outcome, queries=2)",
        "composite(layout=chained, supervision=outcome)",
        "composite(keys=5, key_tokens=3, queries=3)",
        "composite(keys=3, repeat=latest, queries=3)",
        "composite(keys=2, key_tokens=2, repeat=latest, layout=interleaved)",
        "composite(keys=4, key_tokens=2, repeat=latest, layout=chained, length=30)",
        "composite(group=S3, keys=25, queries=1)",
        "composite(group=S5, layout=chained, keys=40, supervision=outcome)",
        "composite(group=A5, layout=interleaved, keys=4, key_tokens=2, repeat=latest)",
    ],
    "needle": ["needle(keys=1, values=2, fillers=1, length=2)"],
    "count": ["count(signs=2, most=1, length=3)", "count(most=20)"],
    "majority": ["majority(supervision=outcome)"],
    "reverse": ["reverse(signs=2, length=9)"],
    "sort": ["sort(signs=2, length=9)", "sort(signs=200)"],
    "addition": [
        "addition(order=reversed)",
        "addition(hints=true, length=4, marks=5)",
        "addition(hints=true, order=reversed)",
    ],
    "set_complement": [
        "set_complement(signs=3, length=2)",
        "set_complement(signs=40, length=6, supervision=outcome)",
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


@every_task
@pytest.mark.parametrize("rule", [*RULES, *sampling.RULES], ids=lambda rule: rule.name)
def test_task_conforms(task, rule):
    rule(task)


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
    check_against_solver(task, data.draw(small_ranges(task)), batch, seed)


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@every_task
def test_joint_samples_on_a_gpu_equal_each_seed_alone(task):
    # an odd number of rows, and more than one thread block draws
    check_joint_samples(task, task.lengths, 777, "cuda")


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
