"""The worked examples in the docstrings are true, and drawn as `draw` draws."""

import re
import sys

import pytest
import torch

from outlast import registry
from outlast.tasks import IGNORE, Batch, draw
from outlast.tasks.drawing import NOTHING

EXAMPLE = re.compile(
    r"^ +(?P<spec>\w.*)\n +tokens +(?P<tokens>.*)\n +labels +(?P<labels>.*)$", re.M
)


def examples(name: str) -> list[re.Match[str]]:
    factory = registry.tasks.entry(name).factory
    text = f"{sys.modules[factory.__module__].__doc__}\n{factory.__doc__}"
    return list(EXAMPLE.finditer(text))


ALL = [(name, example) for name in registry.tasks.names() for example in examples(name)]


@pytest.mark.parametrize("name", registry.tasks.names())
def test_every_task_of_ours_has_a_worked_example(name):
    if registry.tasks.entry(name).source == "outlast":
        assert examples(name)


@pytest.mark.parametrize(("name", "example"), ALL, ids=[e["spec"] for _, e in ALL])
def test_worked_example_is_solved_and_drawn_as_written(name, example):
    task = registry.tasks.build(example["spec"])
    assert task.spec.name == name
    ids = {task.word(token): token for token in range(task.vocabulary)}
    inputs = [ids[word] for word in example["tokens"].split()]
    labels = [None if word == NOTHING else ids[word] for word in example["labels"].split()]
    assert task.solve(inputs) == labels

    targets = torch.tensor([[IGNORE if label is None else label for label in labels]])
    batch = Batch(torch.tensor([inputs]), targets, torch.zeros_like(targets))
    shown = [f"{row}  {example[row]}" for row in ("tokens", "labels")]
    assert draw(task, batch).splitlines() == shown


def test_draw_leaves_padding_out():
    task = registry.tasks.build("modsum(supervision=outcome)")
    batch = Batch(
        torch.tensor([[1, 2, 10, 11, 11], [9, 9, 9, 9, 10]]),
        torch.tensor([[-100, -100, 3, -100, -100], [-100, -100, -100, -100, 6]]),
        torch.tensor([[-1, -1, 0, -1, -1], [-1, -1, -1, -1, 0]]),
    )
    assert draw(task, batch) == "tokens  1 2 =\nlabels  . . 3"
    assert draw(task, batch, row=1) == "tokens  9 9 9 9 =\nlabels  . . . . 6"
