"""Tasks that write out what they know: the rows themselves, and not only the answers, are right."""

import pytest
import torch

import outlast
from outlast.tasks import Batch, Task
from outlast.tasks.addition import _added


def drawn(line: str, length: int | tuple[int, int], batch: int = 40) -> tuple[Task, Batch]:
    task = outlast.task(line)
    return task, task.sample(length, batch, torch.Generator().manual_seed(3))


def words(task: Task, row: list[int]) -> list[str]:
    return [task.word(token) for token in row if token != task.vocabulary - 1]


@pytest.mark.parametrize("order", ["plain", "reversed"])
@pytest.mark.parametrize("hints", ["false", "true"])
def test_addition_writes_two_numbers_and_their_sum(order: str, hints: str) -> None:
    task, batch = drawn(f"addition(order={order}, hints={hints})", (1, 12), 200)
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        row = words(task, inputs)
        due = [str(answer) for answer in targets if answer >= 0]
        text = "".join(word for word in row if word[0] != "k")
        left, _, written = text.partition("=")
        numbers = [*left.split("+"), "".join(due)]
        assert written == "".join(due[:-1])
        if order == "reversed":
            numbers = [number[::-1] for number in numbers]
        one, two, total = map(int, numbers)
        assert one + two == total
        assert len(numbers[0]) == len(numbers[1]) == len(numbers[2]) - 1


def test_addition_hints_name_the_same_places_in_all_three_numbers() -> None:
    task, batch = drawn("addition(hints=true, marks=20)", (1, 12), 200)
    lowest = set()
    for inputs in batch.inputs.tolist():
        row = " ".join(words(task, inputs)).replace("+", "=").split("=")
        one, two, total = ([int(w[1:]) for w in number.split() if w[0] == "k"] for number in row)
        assert one == two == total[1:]
        assert total == list(range(total[0], total[0] - len(total), -1))
        lowest.add(total[-1])
    assert len(lowest) > 10


def test_carry_runs_through_a_row_of_nines() -> None:
    task = outlast.task("addition")
    row = [*[9] * 8, task.plus, *[0] * 7, 1, task.equals]
    assert task.solve([*row, *[1, *[0] * 7]])[-9:] == [1] + [0] * 8
    nines = torch.tensor([[9] * 8 + [0], [9] * 8 + [0]])
    ones = torch.tensor([[1, *[0] * 8], [0] * 9])
    assert _added(nines, ones).tolist() == [[0] * 8 + [1], [9] * 8 + [0]]


@pytest.mark.parametrize("name", ["copy", "reverse", "sort"])
def test_row_said_again_is_in_the_order_of_the_task(name: str) -> None:
    _, batch = drawn(f"{name}(signs=5)", (2, 9))
    change = {"copy": list, "reverse": lambda row: row[::-1], "sort": sorted}[name]
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        at = inputs.index(5)
        assert targets[at : 2 * at] == change(inputs[:at])
        assert inputs[at + 1 : 2 * at] == change(inputs[:at])[:-1]


def test_needle_stands_at_every_place_alike() -> None:
    task, batch = drawn("needle(keys=3, values=2, fillers=5)", 4, 4000)
    place = (batch.inputs < task.classes).long().argmax(1) - 1
    shares = place.bincount() / 4000
    assert len(shares) == 5
    assert (shares - 0.2).abs().max() < 0.03
    assert ((batch.inputs < task.classes).sum(1) == 1).all()


def test_counted_sign_stands_at_every_place_alike() -> None:
    _, batch = drawn("count(signs=4, most=3)", 6, 4000)
    asked = batch.inputs[:, :6] == batch.inputs[:, -1:]
    assert (asked.float().mean(0) - 1.5 / 6).abs().max() < 0.03
    assert torch.equal(asked.sum(1), batch.targets[:, -1])
    assert len(batch.inputs[:, -1].unique()) == 4


@pytest.mark.parametrize("depth", [2, 5])
def test_brackets_nest_up_to_the_depth_and_the_first_stays_open(depth: int) -> None:
    task, batch = drawn(f"dyck(k=4, depth={depth})", (1, 40), 100)
    deepest, shares = 0, torch.zeros(2)
    for row in batch.inputs.tolist():
        open_ones = list[str]()
        for word in words(task, row)[:-1]:
            if word in "([{<":
                open_ones.append(word)
            else:
                assert ")]}>".index(word) == "([{<".index(open_ones.pop())
            assert 1 <= len(open_ones) <= depth
            deepest = max(deepest, len(open_ones))
            shares[int(word in "([{<")] += 1
    assert deepest == depth
    assert abs(shares[0] / shares.sum() - 0.5) < 0.08


def test_one_level_of_flipflop_has_the_words_of_flipflop() -> None:
    one, batch = drawn("hierarchical_flipflop(length=12, ignore=0.3, levels=1)", (4, 12), 100)
    plain = outlast.task("flipflop(length=12)")
    assert one.vocabulary == plain.vocabulary
    for row, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        assert [-100 if answer is None else answer for answer in plain.solve(row)] == targets


def test_flipflop_levels_and_instructions_have_their_shares() -> None:
    task, batch = drawn("hierarchical_flipflop(ignore=0.4, levels=3)", 128, 300)
    counts = batch.inputs[:, 2:-2:2].flatten().bincount(minlength=task.vocabulary) / (300 * 62)
    expected = torch.tensor([0, 0, *[0.1] * 6, 0.4, 0])
    assert (counts - expected).abs().max() < 0.015


def test_fillers_stand_before_questions_alone() -> None:
    task, batch = drawn("recall(keys=9, queries=3, length=5, fillers=4)", 5, 500)
    gaps = torch.zeros(5)
    for row in batch.inputs.tolist():
        after = words(task, row)[10:]
        assert "_" not in words(task, row)[:10]
        assert [word[0] for word in after if word != "_"] == ["k"] * 3
        for gap in " ".join(after).split("k")[:3]:
            gaps[gap.count("_")] += 1
    assert (gaps / 1500 - 0.2).abs().max() < 0.04
