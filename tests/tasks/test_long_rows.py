"""Rows of 10,000 items are drawn in time and memory that grow with their length, and are right."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from outlast import registry
from outlast.tasks import IGNORE

LONG = 10_000
#: versions whose long rows are worth a test, beside each task's default
MORE = (
    "composite(keys=320, key_tokens=2)",
    "composite(keys=320, key_tokens=2, repeat=latest)",
    "composite(keys=10240, key_tokens=2)",
    "addition(hints=true, order=reversed, marks=10001)",
)
LINES = [name for name in registry.tasks.names() if name != "text"] + list(MORE)  # text has a file


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that any operation makes."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor):
                self.bytes = max(self.bytes, tensor.numel() * tensor.element_size())
        return made


@pytest.mark.parametrize("line", LINES)
def test_long_rows_are_right_and_take_memory_by_length(line: str) -> None:
    task = registry.tasks.build(line)
    length = min(LONG, task.ceiling or LONG)
    with Largest() as largest:
        batch = task.sample(length, 2, torch.Generator().manual_seed(0))
    few = task.ceiling is not None and task.ceiling <= 2**20  # then all keys may be ranked
    most = max(10 * task.tokens(length), task.ceiling if few else 0)
    assert largest.bytes <= 2 * 8 * most
    solved = task.solve(batch.inputs[1].tolist())
    assert batch.targets[1].tolist() == [IGNORE if a is None else a for a in solved]
