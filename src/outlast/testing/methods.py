"""What every method must hold to: it is a pure function of the step and of a JSON state."""

from __future__ import annotations

import copy
import json
import math

from outlast.methods import Control, Event, Method, Setup
from outlast.methods.base import PATHWAYS, Losses, MethodState
from outlast.registry import methods
from outlast.testing.compare import untouched_random_state
from outlast.testing.rules import RuleSet, require

#: the run in which methods are tested, and the steps of its blocks
SETUP = Setup(steps=200, parts=("running", "state", "recall"), lengths=(1, 12))
BLOCK = 10

#: of the line of a method
RULES = RuleSet[str]()


def losses(step: int) -> Losses:
    """Those of the block that ends at `step`: they stand still for a while, then fall."""
    values = [2.3 * math.exp(-max(0, s - 30) / 10) for s in range(step - BLOCK, step)]
    return {part: list(values) for part in SETUP.parts}


def observe(method: Method, step: int, state: MethodState) -> list[Event]:
    """Show a method the block that ends at `step`, and the held-out losses that it wants."""
    shown = losses(step)
    events = method.observe(step, shown, state)
    if multiples := method.held_out(state):
        last = {part: values[-1] for part, values in shown.items()}
        method.observe_held_out(step, dict.fromkeys(multiples, last), state)
    return events


def controls(method: Method, state: MethodState, begin: int) -> list[Control]:
    """What a method wants of each step of a block."""
    edited = []
    for step in range(begin, begin + BLOCK):
        control = Control.plain(SETUP)
        method.control(step, state, control)
        edited.append(control)
    return edited


def _build(line: str) -> tuple[Method, MethodState]:
    method = methods.build(line)
    require(isinstance(method, Method), f"it is a {type(method).__name__}, not a Method")
    return method, method.begin(SETUP)


@RULES.rule
def spec_builds_the_same_method(line: str) -> None:
    """It is a `Method`, and its written-out spec builds the same method.

    Why: A run folder records the spec. The method is built from it again to resume.
    Fix: Inherit from `outlast.methods.Method`.
    """
    method, _ = _build(line)
    for spec in (method.spec, methods.canonical(line, full=True)):
        again = methods.build(str(spec)).spec
        require(again == method.spec, f"{spec} builds {again}, not {method.spec}")


@RULES.rule
def state_from_json_resumes_exactly(line: str) -> None:
    """A method built anew, with the state read back from JSON, goes on as if never stopped.

    Why: A checkpoint holds the spec and the state of a method, and nothing else of it.
    Fix: Keep in the state all that `observe` learns: numbers, text, lists, dicts with text as
    keys, no NaN. What `begin` computes from the setup may be in `self`.
    """
    method, state = _build(line)
    for step in range(0, SETUP.steps, BLOCK):
        # another process: all that it has is the spec and the JSON
        other, _ = _build(str(method.spec))
        resumed = json.loads(json.dumps(state, allow_nan=False))
        require(resumed == state, f"the state is changed by JSON: {state} to {resumed}")
        same = controls(other, resumed, step) == controls(method, state, step)
        require(same, f"resumed at step {step}, it wants other controls")
        events = observe(method, step + BLOCK, state)
        others = observe(other, step + BLOCK, resumed)
        require(others == events, f"resumed at step {step}, it has other events")
        require(resumed == state, f"resumed at step {step}, it comes to another state")


@RULES.rule
def control_is_a_pure_function(line: str) -> None:
    """`control` changes no state, draws nothing, and gives the same for the same step.

    Why: Blocks are planned ahead, and planned again after an error.
    Fix: Change the state in `observe` alone.
    """
    method, state = _build(line)
    for step in range(0, SETUP.steps, BLOCK):
        before = copy.deepcopy(state)
        with untouched_random_state():
            first = controls(method, state, step)
            later = controls(method, state, step + 50)
            same = controls(method, state, step) == first
            same = same and controls(method, state, step + 50) == later
        require(same, f"asked again, it wants other controls of the steps from {step}")
        require(state == before, "`control` changes the state")
        observe(method, step + BLOCK, state)


@RULES.rule
def controls_and_events_are_valid(line: str) -> None:
    """Controls stay in range and name known parts and pathways; events are JSON.

    Why: Controls become tables, and a weight of an unknown part would be lost without a word.
    Fix: Change only keys that are there: parts of the task, and the three pathways. A gate is from
    0 to 1, lengths lie within those of the task, and some part is always trained.
    """
    method, state = _build(line)
    for step in range(0, SETUP.steps, BLOCK):
        for control in controls(method, state, step):
            _check_control(control)
        for event in observe(method, step + BLOCK, state):
            require(event.name, "an event has no name")
            json.dumps(event.details, allow_nan=False)


def _check_control(control: Control) -> None:
    weights = control.loss_weights
    require(set(weights) == set(SETUP.parts), f"loss_weights has the parts {', '.join(weights)}")
    require(all(w >= 0 for w in weights.values()), f"loss_weights={weights}: one is below 0")
    require(any(weights.values()), "no part is trained: all loss_weights are 0")
    low, high = control.lengths
    fits = SETUP.lengths[0] <= low <= high <= SETUP.lengths[1]
    require(fits, f"lengths={control.lengths}: expected some within {SETUP.lengths}")
    for name in ("gate", "upstream_grad", "keep", "rate"):
        table = getattr(control, name)
        require(set(table) == set(PATHWAYS), f"{name} has the pathways {', '.join(table)}")
        most = math.inf if name == "rate" else 1
        fits = all(0 <= v <= most and v < math.inf for v in table.values())
        require(fits, f"{name}={table}: one is out of range")


@RULES.rule
def seeds_do_not_share_state(line: str) -> None:
    """The states of two seeds are separate: what one seed sees changes nothing for another.

    Why: Each seed has its own state and switches on its own.
    Fix: Return a new dict from `begin`, and keep in `self` nothing that `observe` changes.
    """
    method, mine = _build(line)
    theirs = method.begin(SETUP)
    fresh = copy.deepcopy(theirs)
    before = controls(method, theirs, 0)
    for step in range(0, SETUP.steps, BLOCK):
        observe(method, step + BLOCK, mine)
    require(theirs == fresh, "the state of another seed has changed")
    require(controls(method, theirs, 0) == before, "another seed now has other controls")
