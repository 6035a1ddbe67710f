"""Delayed attention and its control: what each step does before and after the switch."""

import pytest

from outlast.errors import SpecError
from outlast.methods import Control, Setup
from outlast.methods.phases import RESTART_WARMUP
from outlast.registry import methods

PARTS = ("running", "state", "recall")
SETUP = Setup(steps=1000, parts=PARTS, lengths=(1, 12))
FULL = dict.fromkeys(PARTS, 1.0)
STATE_FIRST = {"running": 1.0, "state": 1.0, "recall": 0.0}


class Run:
    """A method in a run of which only the losses are known."""

    def __init__(self, spec: str, setup: Setup = SETUP) -> None:
        self.method, self.setup = methods.build(spec), setup
        self.state = self.method.begin(setup)

    def at(self, step: int) -> Control:
        control = Control.plain(self.setup)
        self.method.control(step, self.state, control)
        return control

    def look(self, step: int, loss: float, **others: float) -> list[tuple[str, dict]]:
        shown = {p: [others.get(p, loss)] for p in self.setup.parts}
        found = self.method.observe(step, shown, self.state)
        return [(event.name, event.details) for event in found]


# ---- the modes ---------------------------------------------------------------------------------

#: what each mode does to attention in phase 1: gate, upstream_grad, rate
HELD_BACK = {"skip": (0, 1, 1), "ramp": (0, 1, 1), "freeze": (1, 1, 0), "detach": (1, 0, 1)}


@pytest.mark.parametrize("mode", HELD_BACK)
def test_phase_1_holds_attention_back_and_nothing_else(mode):
    control = Run(f"dat(mode={mode})").at(100)
    found = tuple(t["attention"] for t in (control.gate, control.upstream_grad, control.rate))
    assert found == HELD_BACK[mode]
    for pathway in ("recurrent", "pointwise"):
        assert control.gate[pathway] == control.upstream_grad[pathway] == control.rate[pathway] == 1
    assert control.weights == STATE_FIRST
    assert control.learns("attention") == (mode == "detach")


@pytest.mark.parametrize("mode", HELD_BACK)
def test_long_after_the_switch_everything_trains(mode):
    run = Run(f"dat(mode={mode})")
    run.look(300, 0.001)
    assert run.at(300 + 500) == Control.plain(SETUP)


@pytest.mark.parametrize("mode", ["skip", "freeze", "ramp"])
def test_after_the_switch_attentions_rate_warms_up_again(mode):
    run = Run(f"dat(mode={mode}, rewarm=4)")
    run.look(300, 0.001)
    rates = [run.at(step).rate["attention"] for step in range(300, 306)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert {run.at(300).rate[p] for p in ("recurrent", "pointwise")} == {1.0}


def test_what_has_learned_all_along_needs_no_new_warm_up():
    run = Run("dat(mode=detach, rewarm=4)")
    run.look(300, 0.001)
    assert run.at(300) == Control.plain(SETUP)


def test_without_rewarm_attention_joins_at_its_full_rate():
    run = Run("dat(rewarm=0)")
    run.look(300, 0.001)
    assert run.at(300) == Control.plain(SETUP)


def test_a_ramp_opens_the_gate_bit_by_bit():
    run = Run("dat(mode=ramp, ramp=4, rewarm=0)")
    run.look(300, 0.001)
    assert [run.at(s).gate["attention"] for s in range(300, 305)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_a_skip_opens_it_at_once():
    run = Run("dat(mode=skip)")
    run.look(300, 0.001)
    assert run.at(300).gate["attention"] == 1


@pytest.mark.parametrize("method", ["dat", "loss_order"])
def test_everything_can_learn_at_another_rate_after_the_switch(method):
    run = Run(f"{method}(rate=0.5)")
    assert run.at(299).rate["pointwise"] == 1
    run.look(300, 0.001)
    control = run.at(1000)
    assert set(control.rate.values()) == {0.5}


@pytest.mark.parametrize("factor", [0.0, 0.1])
def test_the_recurrence_can_be_slowed_or_frozen_after_the_switch(factor):
    run = Run(f"dat(recurrent={factor})")
    assert run.at(299).rate["recurrent"] == 1
    run.look(300, 0.001)
    control = run.at(300)
    assert control.rate["recurrent"] == factor
    assert control.rate["pointwise"] == 1
    assert control.learns("recurrent") == (factor > 0)


# ---- what phase 1 trains on --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dat", "loss_order"])
@pytest.mark.parametrize(
    ("phase1", "parts", "weights"),
    [
        ("state", PARTS, STATE_FIRST),
        ("full", PARTS, FULL),
        ("weights(recall=0.1)", PARTS, FULL | {"recall": 0.1}),
        ("weights(recall=0, state=0)", PARTS, {"running": 1.0, "state": 0.0, "recall": 0.0}),
        ("state", ("state", "recall"), {"state": 1.0, "recall": 0.0}),
        ("state", ("recall",), {"recall": 1.0}),
    ],
)
def test_the_losses_of_phase_1(name, phase1, parts, weights):
    run = Run(f"{name}(phase1={phase1})", Setup(1000, parts, (1, 12)))
    assert run.at(0).weights == weights
    run.look(10, 0.001)
    assert run.at(10).weights == dict.fromkeys(parts, 1.0)


@pytest.mark.parametrize("phase1", ["state", "full", "weights(recall=0.1)"])
def test_the_control_has_dats_losses_at_every_step_and_leaves_attention_alone(phase1):
    arguments = f"(phase1={phase1}, switch=below(0.5), latest=0.4, otherwise=retry)"
    dat, control = Run(f"dat{arguments}"), Run(f"loss_order{arguments}")
    for step in range(50, 1000, 50):
        loss = 2.0 if step < 600 else 0.1
        assert dat.at(step).weights == control.at(step).weights
        for table in (control.at(step).gate, control.at(step).upstream_grad):
            assert set(table.values()) == {1.0}
        assert dat.look(step, loss) == control.look(step, loss)


# ---- the switch --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("switch", "at"),
    [("400", 400), ("0.4", 400), ("below(0.1)", 250), ("plateau(patience=100)", 350)],
)
def test_each_kind_of_trigger_pulls_the_switch_once(switch, at):
    run = Run(f"dat(switch={switch})")
    events = []
    for step in range(50, 1000, 50):
        # a block of each loss long enough for the smoothed one to follow
        shown = {p: [2.0 if step < 250 else 0.1**3] * 1000 for p in PARTS}
        assert run.state["switched"] == (None if step <= at else at)
        events += [(step, e.name, e.details) for e in run.method.observe(step, shown, run.state)]
    [(step, name, details)] = events
    assert (step, name, details["converged"]) == (at, "switch", True)
    assert 0 < details["loss"] < 2


@pytest.mark.parametrize(
    ("parts", "watched"),
    [(PARTS, "running"), (("recall", "state"), "state"), (("recall", "other"), "recall")],
)
def test_the_densest_signal_of_state_is_watched(parts, watched):
    others = {p: 2.0 for p in parts if p != watched}
    run = Run("dat(phase1=full)", Setup(1000, parts, (1, 12)))
    assert run.look(100, 2.0, **{watched: 1.0}) == []
    run = Run("dat(phase1=full)", Setup(1000, parts, (1, 12)))
    assert [name for name, _ in run.look(100, 0.001, **others)] == ["switch"]


def test_another_part_can_be_watched():
    run = Run("dat(phase1=full, watch=recall)")
    assert run.look(100, 0.001, recall=2.0) == []
    run = Run("dat(phase1=full, watch=recall)")
    assert run.look(100, 2.0, recall=0.001) == [("switch", {"converged": True, "loss": 0.001})]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("watch=speed", "watch=speed: expected a part of the task: running | state | recall"),
        ("watch=recall", "watch=recall: expected a part that phase 1 trains on"),
        ("phase1=weights(running=0)", "watch=running: expected a part that phase 1 trains on"),
        ("phase1=weights(recal=1)", "phase1=recal: expected parts of the task; did you mean"),
        ("phase1=weights(recall=-1)", "phase1.recall=-1.0: expected a weight >= 0"),
        ("latest=1.5", "latest=1.5: expected a step >= 0, or a share of training"),
    ],
)
@pytest.mark.parametrize("name", ["dat", "loss_order"])
def test_what_does_not_fit_the_run_is_named(name, arguments, says):
    with pytest.raises(SpecError) as caught:
        Run(f"{name}({arguments})")
    assert says in str(caught.value)


# ---- seeds that do not converge ----------------------------------------------------------------


def history(spec: str, losses: dict[int, float]) -> dict[int, tuple[str, dict]]:
    run = Run(spec)
    found = {}
    for step, loss in losses.items():
        for event in run.look(step, loss):
            found[step] = event
    return found


NEVER = dict.fromkeys(range(100, 1001, 100), 2.0)


def test_a_seed_that_is_late_switches_all_the_same_and_it_is_noted():
    found = history("dat(latest=0.6, otherwise=switch)", NEVER)
    assert found == {600: ("switch", {"converged": False, "loss": 2.0})}


def test_latest_may_be_a_step():
    assert list(history("dat(latest=250)", NEVER)) == [300]


def test_a_seed_that_waits_never_switches_late_and_says_so_at_the_end():
    found = history("dat(latest=0.6, otherwise=wait)", NEVER)
    assert found == {1000: ("not converged", {"converged": False, "loss": 2.0})}
    late = NEVER | {900: 0.0}
    waited = Run("dat(latest=0.6, otherwise=wait, switch=900)")
    assert [name for step, loss in late.items() for name, _ in waited.look(step, loss)] == [
        "switch"
    ]
    assert waited.state["switched"] == 900


def test_a_seed_that_converges_at_the_last_look_is_said_to_but_stays_closed():
    run = Run("dat(switch=1000)")
    assert run.look(1000, 0.5) == [("switch", {"converged": True, "loss": 0.5})]
    assert run.at(1000).gate["attention"] == 0


def test_a_retry_needs_time_for_a_second_try():
    with pytest.raises(SpecError, match=r"latest=0\.6: expected less than half of training"):
        Run("dat(latest=0.6, otherwise=retry)")


@pytest.mark.parametrize("otherwise", ["switch", "wait"])
def test_there_is_no_switch_after_the_last_step(otherwise):
    """Attention that never trained must not be let into the tests."""
    run = Run(f"dat(latest=1.0, otherwise={otherwise})")
    events = [event for step, loss in NEVER.items() for event in run.look(step, loss)]
    assert events == [("not converged", {"converged": False, "loss": 2.0})]
    assert run.at(1000).gate["attention"] == 0


def test_a_seed_that_retries_starts_afresh_for_as_long_as_there_is_time():
    found = history("dat(latest=0.3, otherwise=retry)", NEVER)
    assert found == {
        300: ("restart", {"attempt": 1, "loss": 2.0}),
        600: ("restart", {"attempt": 2, "loss": 2.0}),
        900: ("switch", {"converged": False, "loss": 2.0}),
    }


def test_a_restart_forgets_the_losses_and_the_trigger_and_warms_up_again():
    run = Run("dat(latest=0.3, otherwise=retry, switch=plateau(patience=100))")
    for step in (100, 200, 300):
        run.look(step, 2.0)
    assert (run.state["loss"], run.state["trigger"], run.state["since"]) == (None, {}, 300)
    for pathway in ("recurrent", "pointwise"):
        assert run.at(300).rate[pathway] == pytest.approx(1 / RESTART_WARMUP)
        assert run.at(300 + RESTART_WARMUP // 2 - 1).rate[pathway] == pytest.approx(0.5)
        assert run.at(300 + RESTART_WARMUP).rate[pathway] == 1
    assert run.at(300).weights == STATE_FIRST
    run.look(350, 0.7)
    assert run.state["loss"] == 0.7


def test_a_second_start_that_converges_switches():
    run = Run("dat(latest=0.3, otherwise=retry)")
    for step in (100, 200, 300):
        run.look(step, 2.0)
    assert run.look(400, 0.001) == [("switch", {"converged": True, "loss": 0.001})]
    assert run.state["switched"] == 400
