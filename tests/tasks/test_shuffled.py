"""Items in another order: the same items, the same questions, the same answers from the set."""

import itertools

import pytest
import torch

import outlast
from outlast.tasks import IGNORE, Batch, Task

TASKS = (
    "composite(keys=32, length=6)",
    "composite(keys=32, length=6, layout=interleaved)",
    "composite(keys=6, length=6, key_tokens=2)",
    "recall(keys=32, length=6)",
    "recall(keys=32, length=6, fillers=2)",
    "modsum(length=6)",
    "parity(length=6)",
    "majority(length=6)",
    "needle(keys=4, length=6)",
    "count(signs=4, most=3, length=6)",
    "sort(signs=4, length=6)",
    "set_complement(signs=9, length=6)",
    "entangled_parity(keys=9, queries=0, length=6)",
)


def draw(line: str) -> tuple[Task, Batch, torch.Tensor]:
    task = outlast.task(line)
    batch = task.sample((max(2, task.shortest), 6), 64, torch.Generator().manual_seed(0))
    shuffled = task.shuffled(batch.inputs, torch.Generator().manual_seed(1))
    assert shuffled is not None
    return task, batch, shuffled


@pytest.mark.parametrize("line", TASKS)
def test_answers_that_depend_on_the_set_of_items_stay(line: str) -> None:
    task, batch, shuffled = draw(line)
    assert (shuffled != batch.inputs).any(1).float().mean() > 0.5
    asked = torch.zeros_like(batch.part, dtype=torch.bool)
    for part in task.asked:
        asked |= batch.part == task.parts.index(part)
    solved = [task.solve(row) for row in shuffled.tolist()]
    answers = torch.tensor([[IGNORE if a is None else a for a in row] for row in solved])
    assert torch.equal(answers[asked], batch.targets[asked])
    assert torch.equal(shuffled[asked], batch.inputs[asked])


def test_items_stay_whole() -> None:
    task, batch, shuffled = draw("recall(keys=32, length=6)")
    for before, after in zip(batch.inputs.tolist(), shuffled.tolist(), strict=True):
        pairs = [
            {(k, v) for k, v in itertools.pairwise(row) if v < task.classes <= k}
            for row in (before, after)
        ]
        assert pairs[0] == pairs[1]


def test_chained_recall_follows_the_new_order() -> None:
    task, batch, shuffled = draw("composite(keys=32, length=6, layout=chained)")
    solved = [task.solve(row) for row in shuffled.tolist()]
    answers = torch.tensor([[IGNORE if a is None else a for a in row] for row in solved])
    recall, state = (batch.part == task.parts.index(part) for part in ("recall", "state"))
    assert torch.equal(answers[state], batch.targets[state])
    assert not torch.equal(answers[recall], batch.targets[recall])


def test_product_of_a_group_follows_the_new_order() -> None:
    task, batch, shuffled = draw("composite(keys=32, length=6, group=S5)")
    solved = [task.solve(row) for row in shuffled.tolist()]
    answers = torch.tensor([[IGNORE if a is None else a for a in row] for row in solved])
    recall, state = (batch.part == task.parts.index(part) for part in ("recall", "state"))
    assert torch.equal(answers[recall], batch.targets[recall])
    assert (answers[state] != batch.targets[state]).float().mean() > 0.5


@pytest.mark.parametrize(
    "line", ["permutation(group=S5, length=6)", "regular(language=even_pairs, length=6)"]
)
def test_state_that_depends_on_the_order_follows_the_new_one(line: str) -> None:
    task, batch, shuffled = draw(line)
    assert torch.equal(shuffled.sort(1).values, batch.inputs.sort(1).values)
    assert torch.equal(shuffled >= task.classes, batch.inputs >= task.classes)
    solved = [task.solve(row) for row in shuffled.tolist()]
    answers = torch.tensor([[IGNORE if a is None else a for a in row] for row in solved])
    assert torch.equal(answers == IGNORE, batch.targets == IGNORE)
    asked = batch.part == task.parts.index("state")
    assert (answers[asked] != batch.targets[asked]).any()


def test_pairs_stay_before_the_questions_that_ask_for_them() -> None:
    task = outlast.task("entangled_parity(keys=32, length=12)")
    inputs = task.sample(12, 64, torch.Generator().manual_seed(0)).inputs
    shuffled = task.shuffled(inputs, torch.Generator().manual_seed(1))
    assert shuffled is not None
    assert (shuffled != inputs).any(1).float().mean() > 0.9
    for before, after in zip(inputs.tolist(), shuffled.tolist(), strict=True):
        for first, second in zip(task.solve(before), task.solve(after), strict=True):
            assert (first is None) == (second is None)
        places = [i for i, token in enumerate(before) if token == task.question]
        assert [task.solve(before)[i + 1] for i in places] == [
            task.solve(after)[i + 1] for i in places
        ]
        pairs = [{(k, b) for k, b in itertools.pairwise(row) if b < 2} for row in (before, after)]
        assert pairs[0] == pairs[1]


def test_a_task_whose_order_is_its_meaning_has_none() -> None:
    task = outlast.task("flipflop(length=8)")
    inputs = task.sample(8, 2, torch.Generator().manual_seed(0)).inputs
    assert task.shuffled(inputs, torch.Generator()) is None
