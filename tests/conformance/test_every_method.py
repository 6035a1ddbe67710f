"""What every registered method must hold to: a pure function of the step and a JSON state."""

import copy
import json
import math

import pytest
from subjects import METHODS

from outlast.methods import Control, Method, Setup
from outlast.methods.base import PATHWAYS
from outlast.registry import methods

#: worth a test beyond the default and the options that are spelt out
MORE = [
    "dat(switch=plateau(patience=20), rewarm=10)",
    "dat(switch=0.3, phase1=full, mode=ramp, ramp=30)",
    "dat(switch=below(1e-9), otherwise=retry, latest=0.2)",
    "dat(switch=below(1e-9), otherwise=wait, recurrent=0)",
    "loss_order(switch=60)",
    "curriculum(from=2, by=loss, level=0.5, grow=2)",
]
SPECS = [*METHODS, *MORE]
every = pytest.mark.parametrize("spec", SPECS, ids=SPECS)

SETUP = Setup(steps=200, parts=("running", "state", "recall"), lengths=(1, 12))
BLOCK = 10


def losses(step: int) -> dict[str, list[float]]:
    """Those of the block that ends at `step`: they stand still for a while, then fall."""
    values = [2.3 * math.exp(-max(0, s - 30) / 10) for s in range(step - BLOCK, step)]
    return dict.fromkeys(SETUP.parts, values)


def controls(method: Method, state: dict, begin: int) -> list[Control]:
    edited = []
    for step in range(begin, begin + BLOCK):
        control = Control.plain(SETUP)
        method.control(step, state, control)
        edited.append(control)
    return edited


@every
def test_state_from_json_resumes_exactly(spec):
    method = methods.build(spec)
    state = method.begin(SETUP)
    for step in range(0, SETUP.steps, BLOCK):
        # another process: all that it has is the spec and the JSON
        other = methods.build(str(method.spec))
        other.begin(SETUP)
        resumed = json.loads(json.dumps(state, allow_nan=False))
        assert resumed == state
        assert controls(other, resumed, step) == controls(method, state, step)
        events = method.observe(step + BLOCK, losses(step + BLOCK), state)
        assert other.observe(step + BLOCK, losses(step + BLOCK), resumed) == events
        assert resumed == state


@every
def test_control_is_a_pure_function(spec):
    method = methods.build(spec)
    state = method.begin(SETUP)
    for step in range(0, SETUP.steps, BLOCK):
        before = copy.deepcopy(state)
        first = controls(method, state, step)
        later = controls(method, state, step + 50)
        assert controls(method, state, step) == first
        assert controls(method, state, step + 50) == later
        assert state == before
        method.observe(step + BLOCK, losses(step + BLOCK), state)


@every
def test_controls_and_events_are_valid(spec):
    method = methods.build(spec)
    state = method.begin(SETUP)
    for step in range(0, SETUP.steps, BLOCK):
        for control in controls(method, state, step):
            assert set(control.loss_weights) == set(SETUP.parts)
            assert all(w >= 0 for w in control.loss_weights.values())
            assert any(control.loss_weights.values())
            low, high = control.lengths
            assert SETUP.lengths[0] <= low <= high <= SETUP.lengths[1]
            for table in (control.gate, control.upstream_grad, control.rate):
                assert set(table) == set(PATHWAYS)
                assert all(0 <= v < math.inf for v in table.values())
            assert all(control.gate[p] <= 1 and control.upstream_grad[p] <= 1 for p in PATHWAYS)
        for event in method.observe(step + BLOCK, losses(step + BLOCK), state):
            assert event.name
            json.dumps(event.details, allow_nan=False)


@every
def test_seeds_do_not_share_state(spec):
    method = methods.build(spec)
    mine, theirs = method.begin(SETUP), method.begin(SETUP)
    fresh = copy.deepcopy(theirs)
    before = controls(method, theirs, 0)
    for step in range(0, SETUP.steps, BLOCK):
        method.observe(step + BLOCK, losses(step + BLOCK), mine)
    assert theirs == fresh
    assert controls(method, theirs, 0) == before


@every
def test_spec_of_a_method_builds_the_same_method(spec):
    method = methods.build(spec)
    assert methods.build(str(method.spec)).spec == method.spec
    full = str(methods.canonical(spec, full=True))
    assert methods.build(full).spec == method.spec


def test_only_ema_has_an_average():
    assert methods.build("ema(0.9)").average == 0.9
    assert methods.build("dat").average is None
