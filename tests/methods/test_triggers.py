"""When a phase ends: at a step, after a share, below a loss, or on a plateau."""

import pytest

from outlast.arguments import coerce
from outlast.errors import SpecError
from outlast.methods.triggers import SMOOTHING, as_step, make_trigger, smooth
from outlast.specs import Spec, parse_value


def trigger(switch: str, steps: int = 1000):
    return make_trigger(coerce(parse_value(switch), int | float | Spec, "switch"), steps)


def fired(switch: str, losses: dict[int, float]) -> int | None:
    """The step at which it fires, shown these losses at these steps."""
    one, state = trigger(switch), {}
    return next((step for step, loss in losses.items() if one.fires(step, loss, state)), None)


def every(steps: int, of: list[float], start: int = 0) -> dict[int, float]:
    return {start + (i + 1) * steps: loss for i, loss in enumerate(of)}


@pytest.mark.parametrize(
    ("switch", "at"), [("300", 300), ("250", 300), ("0", 100), ("0.3", 300), ("1.0", 1000)]
)
def test_step_or_share_fires_at_the_first_look_after_it(switch, at):
    assert fired(switch, every(100, [2.0] * 10)) == at


def test_below_fires_at_the_first_loss_under_its_level():
    losses = every(100, [2.0, 0.5, 0.2, 0.1])
    assert fired("below(0.5)", losses) == 300
    assert fired("below(level=0.15)", losses) == 400
    assert fired("below", losses) is None
    assert fired("below", every(100, [0.0099])) == 100


CHANCE, FALL = [2.3] * 20, [1.5, 1.0, 0.6, 0.3]


def test_plateau_does_not_fire_before_the_loss_has_fallen():
    assert fired("plateau(patience=300)", every(100, [2.3] * 50)) is None
    assert fired("plateau(patience=300)", every(100, [2.3, 2.2, 2.0, 1.9] + [1.9] * 50)) is None


def test_plateau_fires_after_patience_steps_without_progress():
    losses = every(100, [*CHANCE, *FALL, *[0.3] * 20])
    best = (len(CHANCE) + len(FALL)) * 100
    assert fired("plateau(patience=300)", losses) == best + 300
    assert fired("plateau(patience=500)", losses) == best + 500
    assert fired("plateau", losses) == best + 500


def test_plateau_tolerance_separates_small_from_large_progress():
    creeping = [0.3 * 0.99**i for i in range(20)]
    falling = [0.3 * 0.8**i for i in range(20)]
    assert fired("plateau(patience=300)", every(100, [2.3, 0.3, *creeping])) is not None
    assert fired("plateau(patience=300)", every(100, [2.3, 0.3, *falling])) is None
    assert fired("plateau(300, tolerance=0.0)", every(100, [2.3, 0.3, *creeping])) is None


def test_plateau_does_not_count_a_rise_as_progress():
    losses = every(100, [2.3, 0.3, 0.9, 0.5, 0.4, 0.3, 0.3])
    assert fired("plateau(patience=300)", losses) == 500


@pytest.mark.parametrize(
    ("switch", "says"),
    [
        ("bellow(1)", "switch: there is no trigger 'bellow'; did you mean 'below'?"),
        ("below(0)", "level=0.0: expected a loss > 0"),
        ("below(low)", "switch: level=low: expected a number"),
        ("below(1, 2)", "switch=below(1, 2): expected below(level)"),
        ("below(under=1)", "switch=below(under=1): expected below(level)"),
        ("below(1, level=2)", "switch=below(1, level=2): expected below(level)"),
        ("plateau(patience=0)", "patience=0: expected a number of steps >= 1"),
        ("plateau(tolerance=1)", "tolerance=1.0: expected a share from 0 to 1"),
        ("-1", "switch=-1: expected a step >= 0, or a share of training >= 0 and < 1"),
        ("1.5", "switch=1.5: expected a step >= 0, or a share of training >= 0 and < 1"),
    ],
)
def test_bad_trigger_is_refused(switch, says):
    with pytest.raises(SpecError) as caught:
        trigger(switch)
    assert says in str(caught.value)


def test_smoothing_is_an_exponential_average_from_the_first_loss():
    assert smooth(None, [2.0]) == 2.0
    assert smooth(2.0, [1.0]) == pytest.approx(2.0 - SMOOTHING)
    assert smooth(None, [3.0, 1.0, 2.0]) == pytest.approx(
        smooth(smooth(smooth(None, [3.0]), [1.0]), [2.0])
    )


def test_whole_number_is_a_step_and_float_a_share():
    assert [as_step(v, 1000, "x") for v in (0, 1, 700, 0.0, 0.25, 1.0)] == [0, 1, 700, 0, 250, 1000]
