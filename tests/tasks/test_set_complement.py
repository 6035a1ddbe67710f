"""Any sign not shown is right, and a test knows how far the outputs are from all of them alike."""

import math

import pytest
import torch
from torch import Tensor

import outlast
from outlast.evaluation.accuracy import distances, right_answers
from outlast.evaluation.ladder import evaluate
from outlast.evaluation.statistics import LEVEL
from outlast.tasks import Batch

TASK = outlast.task("set_complement(signs=10, length=4)")


def missing(row: list[int], place: int, signs: int = 10) -> set[int]:
    return set(range(signs)) - set(row[: place + 1])


class Knowing:
    """A model that says what is missing, or what is not, whole or in chunks."""

    def __init__(self, signs: int, is_right: bool = True) -> None:
        self.signs, self.is_right = signs, is_right

    def __call__(self, tokens: Tensor) -> Tensor:
        shown = torch.nn.functional.one_hot(tokens, self.signs + 1).cumsum(1) > 0
        return torch.where(shown == self.is_right, -1e9, 0.0)

    def in_chunks(self, tokens: Tensor, size: int) -> tuple[Tensor, ...]:
        return self(tokens).split(size, 1)


def test_support_is_what_has_not_been_shown() -> None:
    inputs = TASK.sample((1, 9), 50, torch.Generator().manual_seed(0)).inputs
    support = TASK.support(inputs, 0, inputs.shape[1])
    assert support is not None
    for row, allowed in zip(inputs.tolist(), support.tolist(), strict=True):
        for place, marks in enumerate(allowed):
            assert {sign for sign, mark in enumerate(marks) if mark} == missing(row, place)


def test_next_sign_is_a_uniform_draw_from_those_not_shown() -> None:
    task = outlast.task("set_complement(signs=4, length=2)")
    batch = task.sample(2, 24_000, torch.Generator().manual_seed(0))
    counts: dict[tuple[int, ...], int] = {}
    for row in batch.inputs.tolist():
        counts[tuple(row)] = counts.get(tuple(row), 0) + 1
    assert len(counts) == 4 * 3 * 2
    assert all(abs(count - 1000) < 5 * math.sqrt(1000) for count in counts.values())
    assert torch.equal(batch.targets[:, :2], batch.inputs[:, 1:])


def test_cross_entropy_with_the_draws_is_that_with_the_distribution_on_average() -> None:
    task = outlast.task("set_complement(signs=5, length=2)")
    batch = task.sample(2, 20_000, torch.Generator().manual_seed(0))
    tables = torch.randn(5, 5, 5, generator=torch.Generator().manual_seed(1))
    first, second = batch.inputs[:, 0], batch.inputs[:, 1]
    logs = tables[first, second].log_softmax(-1)  # any model of the two signs shown
    support = task.support(batch.inputs, 1, 2)
    assert support is not None
    exact = -(logs * support[:, 0]).sum(1) / 3
    drawn = -logs.gather(1, batch.targets[:, 1:2])[:, 0]
    error = (drawn - exact).std() / math.sqrt(len(drawn))
    assert abs((drawn - exact).mean()) < 4 * error


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("supervision", ["aligned", "outcome"])
def test_any_sign_not_shown_is_right(supervision: str, chunk: int | None) -> None:
    line = f"set_complement(signs=40, length=6, supervision={supervision})"
    for is_right in (True, False):
        rows = evaluate(Knowing(40, is_right), line, (1, 3, 6.5), sequences=64, chunk=chunk)
        assert [row["length"] for row in rows] == [6, 18, 39]
        for row in rows:
            assert row["exact"] is not None
            assert set(row["exact"].values()) == {float(is_right)}
            assert row["distance"] == {"state": pytest.approx(float(not is_right), abs=1e-6)}


def test_a_length_at_which_nothing_is_left_cannot_be_tested() -> None:
    (row,) = evaluate(Knowing(40), "set_complement(signs=40, length=8)", (5,), sequences=2)
    assert row["exact"] is None
    assert "distance" not in row
    assert "the task ends at length 39" in str(row["reason"])


def test_a_guess_is_at_chance_and_as_far_as_the_signs_shown() -> None:
    def guess(tokens: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(torch.zeros_like(tokens), 41) * 1e-6

    row = evaluate(guess, "set_complement(signs=40, length=10)", (1,), sequences=4000)[0]
    assert row["exact"] is not None
    level = outlast.task("set_complement(signs=40, length=10)").chance_level("state")
    assert level == 0.75
    assert abs(row["exact"]["state"] - level) < 0.03
    assert row["distance"]["state"] == pytest.approx(0.25, abs=1e-4)


def test_a_guess_does_not_hold_at_the_default_sizes() -> None:
    assert outlast.task("set_complement").chance_levels()["joint"] < LEVEL - 0.1


def test_broken_logits_are_wrong_and_as_far_as_can_be() -> None:
    batch = TASK.sample(4, 3, torch.Generator().manual_seed(0))
    support = TASK.support(batch.inputs, 0, 5)
    assert support is not None
    for broken in (math.nan, -math.inf):
        logits = torch.full((3, 5, 11), broken)
        right, nan = right_answers(logits, batch, TASK)
        assert not right.any()
        assert nan.all()
        assert (distances(logits, support) == 1).all()


def test_results_of_other_tasks_have_no_distance() -> None:
    rows = evaluate(lambda tokens: torch.zeros(*tokens.shape, 12), "modsum", (1,), sequences=4)
    assert "distance" not in rows[0]
    batch = Batch(*(torch.tensor([[1, 2]]) for _ in range(3)))
    assert outlast.task("modsum").support(batch.inputs, 0, 2) is None
