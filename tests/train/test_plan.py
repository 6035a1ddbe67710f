"""The plan of a block: every control of a method arrives as a table, under its own name."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import pytest
import torch

import outlast.train.plan as plan_module
from outlast.methods.base import PATHWAYS, Control, Method, Setup
from outlast.registry import methods
from outlast.train.plan import MethodStates
from tiny_runs import tiny

SETUP = Setup(steps=30, parts=("state", "recall"), lengths=(2, 4), tokens=12)


@dataclass
class MoreControl(Control):
    """A control that has two more fields."""

    noise: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PATHWAYS, 0.0))
    temperature: float = 1.0


def dict_fields(control: Control) -> list[str]:
    return [f.name for f in fields(control) if isinstance(getattr(control, f.name), dict)]


class Numbered(Method):
    """Numbers every value of a control by its field, the step and its place."""

    def control(self, step: int, state: dict[str, int], control: Control) -> None:
        for index, name in enumerate(dict_fields(control)):
            table = getattr(control, name)
            table |= {key: 100.0 * index + 10 * step + n for n, key in enumerate(table, 1)}


@pytest.mark.parametrize("kind", [Control, MoreControl])
def test_every_dict_of_a_control_is_a_table(
    kind: type[Control], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new control needs nothing but its field to arrive in the plan."""
    monkeypatch.setattr(plan_module, "Control", kind)
    run = tiny(seeds=(0, 1), schedule="constant", warmup=0, lr=1.0)
    plan = MethodStates([Numbered()], SETUP, run).plan(0, 3)
    names = dict_fields(kind.plain(SETUP))
    assert names[:5] == ["loss_weights", "gate", "upstream_grad", "keep", "rate"]
    for index, name in enumerate(names):
        places = 1 + torch.arange(len(getattr(kind.plain(SETUP), name)))
        steps = 100.0 * index + 10 * torch.arange(3)[:, None, None] + places
        torch.testing.assert_close(plan.tables[name], steps.expand(3, 2, -1), msg=name)


def test_one_number_of_a_control_is_a_table_of_steps_and_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Heated(Method):
        def control(self, step: int, state: dict[str, int], control: Control) -> None:
            control.temperature = 1.0 + step  # type: ignore[attr-defined]

    monkeypatch.setattr(plan_module, "Control", MoreControl)
    plan = MethodStates([Heated()], SETUP, tiny(seeds=(0, 1))).plan(0, 3)
    steps = torch.tensor([1.0, 2.0, 3.0])[:, None]
    torch.testing.assert_close(plan.tables["temperature"], steps.expand(3, 2))


def test_plan_knows_the_kinds_of_initial_state_in_it() -> None:
    run = tiny(seeds=(0, 1))
    wanted = {
        (): (),
        ("state_passing(from=2)",): ("passed",),
        ("state_passing(from=3)",): (),
        ("state_noise(scale=2)",): ("noise",),
        ("state_noise", "state_passing"): ("passed", "noise"),
    }
    for specs, kinds in wanted.items():
        states = MethodStates([methods.build(spec) for spec in specs], SETUP, run)
        assert states.plan(0, 3).initial_states == kinds, specs
