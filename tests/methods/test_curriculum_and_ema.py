"""Lengths that grow, and the average of the weights."""

import pytest

from outlast.errors import SpecError
from outlast.methods import Control, Setup
from outlast.registry import methods

SETUP = Setup(steps=1000, parts=("state", "recall"), lengths=(2, 12))


class Run:
    def __init__(self, spec: str) -> None:
        self.method = methods.build(spec)
        self.state = self.method.begin(SETUP)

    def lengths(self) -> tuple[int, int]:
        control = Control.plain(SETUP)
        self.method.control(0, self.state, control)
        return control.lengths

    def look(self, step: int, **losses: float) -> list[int]:
        """Show a block of losses long enough for the smoothed one to follow."""
        shown = {part: [loss] * 600 for part, loss in losses.items()}
        events = self.method.observe(step, shown, self.state)
        assert all(e.name == "length" for e in events)
        return [e.details["length"] for e in events]


def test_by_steps_lengths_grow_evenly_until_their_share_of_training():
    run = Run("curriculum(from=4, until=0.4)")
    assert run.lengths() == (2, 4)
    grown = {step: run.look(step, state=1.0) for step in range(100, 1001, 100)}
    assert grown == {100: [6], 200: [8], 300: [10], 400: [12]} | {
        step: [] for step in range(500, 1001, 100)
    }
    assert run.lengths() == (2, 12)


def test_by_loss_lengths_grow_when_every_trained_part_is_learned():
    run = Run("curriculum(from=4, by=loss, level=0.1, grow=3)")
    assert run.look(100, state=1.0, recall=1.0) == []
    assert run.look(200, state=0.01, recall=1.0) == [], "recall is not learned"
    assert run.look(300, state=0.01, recall=0.01) == [7]
    assert run.lengths() == (2, 7)
    assert run.look(400, state=0.2, recall=0.01) == [], "each length is learned anew"
    assert run.look(500, state=0.01, recall=0.01) == [10]
    assert run.look(600, state=0.01) == [12], "no longer than the task is trained"
    assert run.look(700, state=0.01, recall=0.01) == []
    assert run.lengths() == (2, 12)


def test_by_loss_a_new_length_does_not_live_on_the_losses_of_the_last():
    run = Run("curriculum(from=4, by=loss)")
    assert run.look(100, state=0.01, recall=0.01) == [5]
    first = {"state": [2.0], "recall": [2.0]}
    assert run.method.observe(101, first, run.state) == []
    assert run.state["loss"] == {"state": 2.0, "recall": 2.0}


def test_a_curriculum_that_begins_at_the_end_changes_nothing():
    run = Run("curriculum(from=12)")
    assert run.lengths() == SETUP.lengths
    assert run.look(100, state=1.0) == []


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("curriculum(from=0)", "method curriculum: from=0: expected a length >= 1"),
        ("curriculum(until=0.0)", "until=0.0: expected a share of training from 0 to 1"),
        ("curriculum(until=1.5)", "until=1.5: expected a share of training from 0 to 1"),
        ("curriculum(level=0)", "level=0.0: expected a loss > 0"),
        ("curriculum(grow=0)", "grow=0: expected a whole number >= 1"),
        ("curriculum(by=time)", "by=time: expected steps | loss"),
        ("ema(0)", "method ema: decay=0.0: expected a number between 0 and 1"),
        ("ema(1)", "method ema: decay=1.0: expected a number between 0 and 1"),
        ("ema(-0.5)", "method ema: decay=-0.5: expected a number between 0 and 1"),
    ],
)
def test_a_bad_argument_is_named(spec, says):
    with pytest.raises(SpecError) as caught:
        methods.build(spec)
    assert says in str(caught.value)


@pytest.mark.parametrize("first", [1, 13])
def test_a_first_length_outside_the_tasks_is_named(first):
    with pytest.raises(SpecError, match=f"from={first}: expected a length from 2 to 12"):
        Run(f"curriculum(from={first})")


def test_ema_says_what_to_keep_and_changes_no_step():
    method = methods.build("ema(0.99)")
    control = Control.plain(SETUP)
    method.control(5, method.begin(SETUP), control)
    assert method.average == 0.99
    assert control == Control.plain(SETUP)
