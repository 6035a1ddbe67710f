"""Delayed attention and its control: what each step does before and after the switch."""

import math
from dataclasses import replace

import msgspec
import pytest

from outlast.errors import SpecError
from outlast.methods import Control, Setup
from outlast.methods.phases import RESTART_WARMUP
from outlast.registry import methods
from outlast.runs.records import read_run, write_run
from tiny_runs import checkpoint, create, resume, tiny, trained

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
        events = self.method.observe(step, shown, self.state)
        return [(event.name, event.details) for event in events]


# ---- the modes ---------------------------------------------------------------------------------

#: what each mode does to attention in phase 1: gate, upstream_grad, rate
HELD_BACK = {"skip": (0, 1, 1), "ramp": (0, 1, 1), "freeze": (1, 1, 0), "detach": (1, 0, 1)}


@pytest.mark.parametrize("mode", HELD_BACK)
def test_phase_1_holds_attention_back_and_nothing_else(mode):
    control = Run(f"dat(mode={mode})").at(100)
    tables = (control.gate, control.upstream_grad, control.rate)
    assert tuple(table["attention"] for table in tables) == HELD_BACK[mode]
    for pathway in ("recurrent", "pointwise"):
        assert control.gate[pathway] == control.upstream_grad[pathway] == control.rate[pathway] == 1
    assert control.loss_weights == STATE_FIRST
    assert control.learns("attention") == (mode == "detach")


@pytest.mark.parametrize(
    ("spec", "step"),
    [
        *((f"dat(mode={mode})", 500) for mode in HELD_BACK),
        ("dat(mode=detach, rewarm=4)", 0),  # it has learned all along: no new warm-up
        ("dat(rewarm=0)", 0),
    ],
)
def test_steps_after_the_switch_everything_trains(spec, step):
    run = Run(spec)
    run.look(300, 0.001)
    assert run.at(300 + step) == Control.plain(SETUP)


@pytest.mark.parametrize(
    ("arguments", "gates", "rates"),
    [
        ("mode=skip, rewarm=4", [1] * 6, [0.25, 0.5, 0.75, 1, 1, 1]),
        ("mode=freeze, rewarm=4", [1] * 6, [0.25, 0.5, 0.75, 1, 1, 1]),
        ("mode=ramp, rewarm=4, ramp=1", [1] * 6, [0.25, 0.5, 0.75, 1, 1, 1]),
        ("mode=ramp, rewarm=0, ramp=4", [0.25, 0.5, 0.75, 1, 1, 1], [1] * 6),
    ],
)
def test_gate_and_rate_of_attention_after_the_switch(arguments, gates, rates):
    run = Run(f"dat({arguments})")
    run.look(300, 0.001)
    controls = [run.at(step) for step in range(300, 306)]
    assert [control.gate["attention"] for control in controls] == gates
    assert [control.rate["attention"] for control in controls] == rates
    assert {controls[0].rate[p] for p in ("recurrent", "pointwise")} == {1.0}


@pytest.mark.parametrize("method", ["dat", "loss_order"])
def test_rate_scales_every_pathway_after_the_switch(method):
    run = Run(f"{method}(rate=0.5)")
    assert run.at(299).rate["pointwise"] == 1
    run.look(300, 0.001)
    control = run.at(1000)
    assert set(control.rate.values()) == {0.5}


@pytest.mark.parametrize("factor", [0.0, 0.1])
def test_recurrent_scales_the_recurrent_rate_after_the_switch(factor):
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
def test_loss_weights_of_both_phases(name, phase1, parts, weights):
    run = Run(f"{name}(phase1={phase1})", Setup(1000, parts, (1, 12)))
    assert run.at(0).loss_weights == weights
    run.look(10, 0.001)
    assert run.at(10).loss_weights == dict.fromkeys(parts, 1.0)


@pytest.mark.parametrize("phase1", ["state", "full", "weights(recall=0.1)"])
def test_loss_order_has_the_losses_of_dat_and_open_gates(phase1):
    arguments = f"(phase1={phase1}, switch=below(0.5), latest=0.4, otherwise=retry)"
    dat, control = Run(f"dat{arguments}"), Run(f"loss_order{arguments}")
    for step in range(50, 1000, 50):
        loss = 2.0 if step < 600 else 0.1
        assert dat.at(step).loss_weights == control.at(step).loss_weights
        for table in (control.at(step).gate, control.at(step).upstream_grad):
            assert set(table.values()) == {1.0}
        assert dat.look(step, loss) == control.look(step, loss)


# ---- the switch --------------------------------------------------------------------------------


SCHEDULED, CONVERGED = {"reason": "schedule"}, {"converged": True}


@pytest.mark.parametrize(
    ("switch", "at", "reason"),
    [
        ("400", 400, SCHEDULED),
        ("0.4", 400, SCHEDULED),
        ("0.9", 900, SCHEDULED),  # later than the latest switch of other triggers
        ("400, latest=300", 300, SCHEDULED),
        ("below(0.1)", 250, CONVERGED),
        ("plateau(patience=100)", 350, CONVERGED),
    ],
)
def test_each_trigger_switches_once_and_says_why(switch, at, reason):
    run = Run(f"dat(switch={switch})")
    events = []
    for step in range(50, 1000, 50):
        # a block of each loss long enough for the smoothed one to follow
        shown = {p: [2.0 if step < 250 else 0.1**3] * 1000 for p in PARTS}
        assert run.state["switched"] == (None if step <= at else at)
        events += [(step, e.name, e.details) for e in run.method.observe(step, shown, run.state)]
    [(step, name, details)] = events
    assert (step, name) == (at, "switch")
    assert 0 < details.pop("loss") <= 2
    assert details == reason


@pytest.mark.parametrize(
    ("parts", "watched"),
    [(PARTS, "running"), (("recall", "state"), "state"), (("recall", "other"), "recall")],
)
def test_running_or_state_part_is_watched_by_default(parts, watched):
    others = {p: 2.0 for p in parts if p != watched}
    run = Run("dat(phase1=full)", Setup(1000, parts, (1, 12)))
    assert run.look(100, 2.0, **{watched: 1.0}) == []
    run = Run("dat(phase1=full)", Setup(1000, parts, (1, 12)))
    assert [name for name, _ in run.look(100, 0.001, **others)] == ["switch"]


def test_watch_chooses_the_part():
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
def test_argument_that_does_not_fit_the_run_is_refused(name, arguments, says):
    with pytest.raises(SpecError) as caught:
        Run(f"{name}({arguments})")
    assert says in str(caught.value)


# ---- what a new run is refused for -------------------------------------------------------------

HYBRID, LSTM, TRANSFORMER = "lstm > attention > mlp @ 8", "lstm > mlp @ 8", "attention > mlp @ 8"


@pytest.mark.parametrize(
    ("method", "model", "says"),
    [
        ("dat", LSTM, f"dat cannot be combined with model={LSTM}: it has no attention to delay"),
        ("dat(mode=detach)", "gru @ 8", "it has no attention to delay; add attention, or use loss"),
        ("dat", TRANSFORMER, f"dat(mode=skip) cannot be combined with model={TRANSFORMER}: with"),
        (
            "dat(mode=ramp)",
            TRANSFORMER,
            "no token sees another one in phase 1; add a recurrent mix",
        ),
        ("dat(mode=freeze, recurrent=0)", TRANSFORMER, "dat(recurrent=0) cannot be combined with"),
        ("dat(mode=freeze, recurrent=0)", TRANSFORMER, "no recurrent mixer whose rate"),
        ("dat(switch=30)", HYBRID, "switch=30: expected a step before 30, the end of training"),
        ("loss_order(switch=1.0)", LSTM, "switch=1.0: expected a step before 30, the end of train"),
        (
            "state_passing(from=30)",
            LSTM,
            "method state_passing: from=30: expected a step before 30, the end of training, or a",
        ),
        ("state_noise(from=1.0)", LSTM, "method state_noise: from=1.0: expected a step before 30"),
        (
            "curriculum(from=2, level=0.5)",
            LSTM,
            "method curriculum: level=0.5: expected nothing with by=steps; give it with by=loss a",
        ),
        (
            "curriculum(2, steps, 0.5, grow=2)",
            LSTM,
            "grow=2: expected nothing with by=steps; give it with by=loss or by=plateau alone",
        ),
        ("curriculum(from=2, by=plateau, until=0.3)", LSTM, "until=0.3: expected nothing with by="),
        ("curriculum(from=2, by=loss, patience=3)", LSTM, "patience=3: expected nothing with by=l"),
        ("random_windows(from=900)", HYBRID, "method random_windows: from=900: expected at most"),
        ("curriculum(from=900)", HYBRID, "method curriculum: from=900: expected a length from"),
        ("dat(watch=speed)", HYBRID, "method dat: watch=speed: expected a part of the task"),
    ],
)
def test_method_that_does_nothing_for_the_model_is_refused_before_a_folder_is_made(
    tmp_path, method, model, says
):
    with pytest.raises(SpecError) as caught:
        create(tiny(method, model=model), tmp_path / "run")
    assert says in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", ["state_passing", "state_noise"])
def test_batch_of_one_sequence_has_no_other_whose_state_could_be_passed(tmp_path, method):
    run = tiny(method, model=LSTM, batch_size=1)
    with pytest.raises(SpecError, match=f"method {method}: batch_size=1: expected 2 or more: a"):
        create(run, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("method", "model"),
    [
        *((f"dat(mode={mode}, recurrent=0.5)", HYBRID) for mode in HELD_BACK),
        ("dat", "lstm | attention @ 8"),
        ("dat(mode=freeze)", TRANSFORMER),
        ("dat(mode=detach)", TRANSFORMER),
        ("loss_order", LSTM),
        ("loss_order", TRANSFORMER),
        ("dat(switch=29)", HYBRID),
        ("state_passing(from=29)", LSTM),
        ("curriculum(from=2, by=plateau, until=0.5, grow=2, patience=3)", LSTM),
    ],
)
def test_method_that_acts_on_the_model_is_accepted(tmp_path, method, model):
    assert create(tiny(method, model=model), tmp_path / "run").is_dir()


def test_older_run_without_attention_can_be_resumed(tmp_path):
    """It was created when nothing was refused; its weights are what they were."""
    reference = trained(tiny("loss_order", model=LSTM, steps=10), tmp_path / "reference")
    folder = create(tiny("loss_order", model=LSTM, steps=10), tmp_path / "older")
    record = read_run(folder)
    line = str(methods.canonical("dat", full=True))
    write_run(folder, msgspec.structs.replace(record, methods=(line,)))
    assert resume(folder)
    weights = [
        {name: table for name, table in checkpoint(run)[0].items() if name != "optimiser.counts"}
        for run in (folder, reference)  # of a pathway without weights the counts differ
    ]
    assert weights[0] == weights[1]
    assert weights[0]


# ---- seeds that do not converge ----------------------------------------------------------------


def history(spec: str, losses: dict[int, float]) -> dict[int, tuple[str, dict]]:
    """The events of a run, by step."""
    run = Run(spec)
    return {step: event for step, loss in losses.items() for event in run.look(step, loss)}


NEVER = dict.fromkeys(range(100, 1001, 100), 2.0)


@pytest.mark.parametrize(
    ("arguments", "events"),
    [
        ("latest=0.6, otherwise=switch", {600: ("switch", {"converged": False, "loss": 2.0})}),
        ("latest=250", {300: ("switch", {"converged": False, "loss": 2.0})}),
        (
            "latest=0.6, otherwise=wait",
            {1000: ("not converged", {"converged": False, "loss": 2.0})},
        ),
        (
            "latest=0.3, otherwise=retry",
            {
                300: ("restart", {"attempt": 1, "loss": 2.0}),
                600: ("restart", {"attempt": 2, "loss": 2.0}),
                900: ("switch", {"converged": False, "loss": 2.0}),
            },
        ),
    ],
)
def test_events_of_a_seed_that_never_converges(arguments, events):
    assert history(f"dat({arguments})", NEVER) == events


def test_seed_that_waits_switches_late():
    run = Run("dat(latest=0.6, otherwise=wait, switch=900)")
    losses = NEVER | {900: 0.0}
    events = [name for step, loss in losses.items() for name, _ in run.look(step, loss)]
    assert events == ["switch"]
    assert run.state["switched"] == 900


def test_convergence_at_the_last_step_is_reported_without_a_switch():
    run = Run("dat(latest=1.0)")
    assert run.look(1000, 0.001) == [("switch", {"converged": True, "loss": 0.001})]
    assert run.at(1000).gate["attention"] == 0


def test_scheduled_switch_at_the_last_step_is_not_reported():
    """Such a run can no longer be created, but an older one may be resumed."""
    run = Run("dat(switch=1000)")
    assert run.look(1000, 0.5) == []
    assert run.at(1000).gate["attention"] == 0


def test_retry_without_time_for_it_is_refused():
    with pytest.raises(SpecError, match=r"latest=0\.6: expected less than half .* 600 of 1000"):
        Run("dat(latest=0.6, otherwise=retry)")


@pytest.mark.parametrize("otherwise", ["switch", "wait"])
def test_no_switch_after_the_last_step(otherwise):
    """Attention that never trained must not be let into the tests."""
    run = Run(f"dat(latest=1.0, otherwise={otherwise})")
    events = [event for step, loss in NEVER.items() for event in run.look(step, loss)]
    assert events == [("not converged", {"converged": False, "loss": 2.0})]
    assert run.at(1000).gate["attention"] == 0


def test_restart_resets_losses_trigger_and_warm_up():
    run = Run("dat(latest=0.3, otherwise=retry, switch=plateau(patience=100))")
    for step in (100, 200, 300):
        run.look(step, 2.0)
    assert (run.state["loss"], run.state["trigger"], run.state["since"]) == (None, {}, 300)
    for pathway in ("recurrent", "pointwise"):
        assert run.at(300).rate[pathway] == pytest.approx(1 / RESTART_WARMUP)
        assert run.at(300 + RESTART_WARMUP // 2 - 1).rate[pathway] == pytest.approx(0.5)
        assert run.at(300 + RESTART_WARMUP).rate[pathway] == 1
    assert run.at(300).loss_weights == STATE_FIRST
    run.look(350, 0.7)
    assert run.state["loss"] == 0.7


def test_restarted_seed_that_converges_switches():
    run = Run("dat(latest=0.3, otherwise=retry)")
    for step in (100, 200, 300):
        run.look(step, 2.0)
    assert run.look(400, 0.001) == [("switch", {"converged": True, "loss": 0.001})]
    assert run.state["switched"] == 400


def test_trigger_knows_the_loss_of_a_guess_at_the_part_that_is_watched():
    method = methods.build("dat(switch=converged)")
    method.begin(replace(SETUP, guesses={"running": 2.3, "recall": 0.7}))
    assert method.trigger.guess == 2.3
    method.begin(SETUP)
    assert method.trigger.guess == math.inf
