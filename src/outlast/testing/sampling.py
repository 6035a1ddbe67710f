"""What the sampler of every task must hold to, so that many seeds are sampled at once on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from outlast.tasks import Batch, Task
from outlast.tasks.base import Length
from outlast.testing.rules import NotApplicable, RuleSet, require
from outlast.testing.tasks import generator, same

RULES = RuleSet[Task]()
#: the most draws of a sampler, by which another seed may add to its operations
DRAWS = 7


class _Watching(TorchDispatchMode):
    """Tells the name of every operation."""

    def __init__(self, watch: Callable[[str], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch = watch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.watch(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


#: operations whose result the host must wait for, so that no GPU is needed to see it
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "is_nonzero", "equal")
#: operations that cost a device nothing
VIEWS = ("view", "unbind", "slice", "select", "expand", "detach", "alias", "split", "as_strided")


@RULES.rule
def sampling_never_makes_the_host_wait(task: Task) -> None:
    """No operation of `sample` makes the host wait for the device.

    Why: Data are made on the GPU while it trains. A wait stops it.
    Fix: Avoid `.item()`, `.tolist()`, `nonzero`, boolean indexing and `if` on a tensor. Use
    `torch.where`, `scatter` and `BatchBuilder`.
    """

    def refuse(name: str) -> None:
        require(name not in WAITS, f"{name} makes the host wait")

    with _Watching(refuse):
        task.sample(task.lengths, 8, generator())


@RULES.rule
def joint_samples_equal_each_seed_alone(task: Task) -> None:
    """Each seed draws among other seeds what it draws alone.

    Why: The data of all seeds may be made in one call.
    Fix: Set `samples_jointly = True` only if all draws go through `outlast.tasks.sampling` and
    each row is treated by itself.
    """
    for length in (task.lengths, task.lengths[1]):
        check_joint_samples(task, length, 6)
    beside, alone = generator(3), generator(3)
    task.sample_each(task.lengths, 4, [generator(1), beside])
    task.sample(task.lengths, 4, alone)
    advanced = torch.equal(beside.get_state(), alone.get_state())
    require(advanced, "among other seeds a generator is left at another place")


def check_joint_samples(task: Task, length: Length, batch: int, device: str = "cpu") -> None:
    """Compare the batches of three seeds with those of each alone."""
    seeds = (5, 2, 9)
    joint = task.sample_each(length, batch, [generator(seed, device) for seed in seeds])
    for row, seed in enumerate(seeds):
        alone = task.sample(length, batch, generator(seed, device))
        among = Batch(joint.inputs[row], joint.targets[row], joint.part[row])
        require(same(among, alone), f"seed {seed} draws other sequences among other seeds")


@RULES.rule
def another_seed_adds_only_its_draws(task: Task) -> None:
    """If `samples_jointly` is set, another seed adds a handful of draws, and no other operations.

    Why: That is what sampling jointly is for.
    Fix: Loop over no seeds and no rows.
    """
    if not task.samples_jointly:
        raise NotApplicable("it is sampled seed by seed")
    calls = {}
    for seeds in (1, 9):
        names: list[str] = []
        with _Watching(names.append):
            task.sample_each(task.lengths, 2, [generator(seed) for seed in range(seeds)])
        calls[seeds] = sum(name not in VIEWS for name in names)
    added = calls[9] - calls[1]
    fits = added <= 8 * DRAWS < 8 * calls[1] / 2
    require(fits, f"8 more seeds add {added} operations to {calls[1]}, not up to {8 * DRAWS}")
