"""When a phase ends: at a step, after a share, below a loss, or on a plateau."""

import math

import pytest

from outlast.arguments import coerce
from outlast.errors import SpecError
from outlast.methods.base import WORST_LOSS
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


# ---- converged: held-out losses, here [short, long] every 100 steps ------------------------------

STILL = [[0.004, 0.005]] * 8


def converged_at(
    looks: list[list[float]], switch: str = "converged(patience=300)", guess: float = math.inf
) -> int | None:
    one, state = trigger(switch), {}
    one.guess = guess
    for number, (short, long) in enumerate(looks, 1):
        one.look(100 * number, {1.0: short, 2.0: long}, state)
        if one.fires(100 * number, 9.9, state):
            return 100 * number
    return None


def test_converged_fires_when_the_long_loss_has_stood_still_for_its_patience():
    learned = [[2.3, 2.3], [1.0, 1.5], [0.1, 0.6], *STILL]
    assert converged_at(learned) == 700
    assert converged_at(learned, "converged(patience=500)") == 900
    assert converged_at(learned[:6]) is None
    assert not trigger("converged").fires(5000, 0.0, {}), "nothing was shown to it"


@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_converged_does_not_depend_on_the_scale_of_the_loss(scale):
    looks = [[2.3, 2.3], [1.0, 1.5], [0.1, 0.6], *STILL]
    assert converged_at([[scale * short, scale * long] for short, long in looks]) == 700


@pytest.mark.parametrize(
    "looks",
    [
        [[2.3, 2.3]] * 20,  # chance level stands still as well
        [[2.3, 2.3], *[[0.01, 0.8]] * 20],  # what was learned does not hold at twice the length
        [[2.3, 2.3], *[[0.01, 1.0 - 0.04 * n] for n in range(20)]],  # it is still falling
        [[2.3, 2.3], *[[0.0, 0.3 * (n % 2)] for n in range(20)]],  # it comes and goes
    ],
    ids=["chance", "short only", "falling", "unsteady"],
)
def test_converged_does_not_fire_before_the_long_loss_has_converged(looks):
    assert converged_at(looks) is None


@pytest.mark.parametrize(
    ("answers", "known"),
    [
        pytest.param(10, math.log(10), id="digits"),
        pytest.param(10, math.log(5), id="parity"),
        pytest.param(10, math.log(2), id="modulo-5"),
        pytest.param(120, math.log(2), id="one-of-two-permutations"),
        pytest.param(2, math.log(2), id="bits"),
    ],
)
def test_converged_does_not_take_a_part_of_the_answer_for_all_of_it(answers, known):
    """A model begins above the loss of a guess, as it has other outputs than answers, too."""
    looks = [[6.9, 6.9], [3.0, 3.1], *[[known, known]] * 8]
    assert converged_at(looks, guess=math.log(answers)) is None
    learned = 100 * len(looks) + 400
    assert converged_at([*looks, *STILL], guess=math.log(answers)) == learned


def test_converged_without_a_known_guess_asks_for_half_of_the_start_alone():
    assert converged_at([[6.9, 6.9], *[[1.5, 1.5]] * 5]) == 500


def test_converged_waits_anew_after_a_loss_that_is_not_finite():
    falling = [[2.3, 2.3], [0.1, 0.6]]
    broken = [*falling, [0.004, 0.005], [0.004, WORST_LOSS], *STILL]
    assert converged_at(broken) == 800
    bouncing = [[0.02, 0.02], [0.17, 0.17]] * 10
    assert converged_at([[2.3, WORST_LOSS], [2.3, 2.3], *bouncing]) is None


def test_converged_takes_no_wide_band_from_a_large_loss_at_the_start():
    bouncing = [[0.02, 0.02], [0.17, 0.17]] * 10
    assert converged_at([[1e6, 1e6], *bouncing], guess=math.log(10)) is None
    assert converged_at([[1e6, 1e6], *STILL], guess=math.log(10)) == 500


def test_converged_fires_though_all_was_learned_before_the_first_look():
    learned = [[0.001, 0.004], *[[0.0004, 0.0006]] * 5]
    assert converged_at(learned, guess=math.log(2)) == 400


def test_converged_keeps_no_more_looks_than_its_patience_needs():
    one, state = trigger("converged(patience=300)"), {}
    for step in range(100, 5000, 100):
        one.look(step, {1.0: 2.0, 2.0: 2.0}, state)
    assert [look[0] for look in state["looks"]] == [4600, 4700, 4800, 4900]


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
        ("plateau(tolerance=1)", "tolerance=1.0: expected a share from 0 to below 1"),
        ("converged(patience=0)", "patience=0: expected a number of steps >= 1"),
        ("converged(tolerance=0)", "tolerance=0.0: expected a share between 0 and 1"),
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
