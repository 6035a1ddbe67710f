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


def test_curriculum_by_steps_grows_evenly_until_its_share():
    run = Run("curriculum(from=4, until=0.4)")
    assert run.lengths() == (2, 4)
    grown = {step: run.look(step, state=1.0) for step in range(100, 1001, 100)}
    assert grown == {100: [6], 200: [8], 300: [10], 400: [12]} | {
        step: [] for step in range(500, 1001, 100)
    }
    assert run.lengths() == (2, 12)


def test_curriculum_by_loss_grows_when_every_part_is_learned():
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


def test_curriculum_by_loss_forgets_losses_of_shorter_lengths():
    run = Run("curriculum(from=4, by=loss)")
    assert run.look(100, state=0.01, recall=0.01) == [5]
    first = {"state": [2.0], "recall": [2.0]}
    assert run.method.observe(101, first, run.state) == []
    assert run.state["loss"] == {"state": 2.0, "recall": 2.0}


def test_curriculum_by_plateau_grows_when_every_loss_has_fallen_and_stands_still():
    run = Run("curriculum(from=4, by=plateau, grow=4, patience=200)")
    shown = {
        100: ({"state": 2.0, "recall": 3.0}, []),
        200: ({"state": 2.0, "recall": 3.0}, []),
        400: ({"state": 2.0, "recall": 3.0}, []),  # chance level is no plateau
        500: ({"state": 0.5, "recall": 3.0}, []),
        800: ({"state": 0.5, "recall": 1.0}, []),  # recall has just fallen
        900: ({"state": 0.5, "recall": 1.0}, []),
        1000: ({"state": 0.5, "recall": 1.0}, [8]),
        # a longer length is learned anew, from the first losses of all
        1100: ({"state": 0.6, "recall": 1.2}, []),
        1200: ({"state": 0.6, "recall": 1.2}, []),
        1300: ({"state": 0.6, "recall": 1.2}, [12]),
        1600: ({"state": 0.6, "recall": 1.2}, []),
    }
    grown = {step: run.look(step, **losses) for step, (losses, _) in shown.items()}
    assert grown == {step: lengths for step, (_, lengths) in shown.items()}


def test_curriculum_by_plateau_does_not_grow_while_the_loss_falls():
    run = Run("curriculum(from=4, by=plateau, patience=200)")
    assert not any(run.look(100 * n, state=2.0 * 0.8**n) for n in range(1, 40))


def test_curriculum_keeps_the_state_that_older_checkpoints_have():
    assert Run("curriculum(by=loss)").state == Run("curriculum").state == {"length": 4, "loss": {}}


def test_curriculum_from_the_longest_length_changes_nothing():
    run = Run("curriculum(from=12)")
    assert run.lengths() == SETUP.lengths
    assert run.look(100, state=1.0) == []


@pytest.mark.parametrize("first", [1, 13])
def test_curriculum_from_outside_the_task_is_refused(first):
    with pytest.raises(SpecError, match=f"from={first}: expected a length from 2 to 12"):
        Run(f"curriculum(from={first})")


def test_ema_has_an_average_and_changes_no_step():
    method = methods.build("ema(0.99)")
    control = Control.plain(SETUP)
    method.control(5, method.begin(SETUP), control)
    assert method.average == 0.99
    assert control == Control.plain(SETUP)
