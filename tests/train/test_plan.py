"""The plan of a block: every control of a method arrives as a table, under its own name."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import pytest
import torch

import outlast.train.plan as plan_module
from outlast.methods.base import PATHWAYS, Control, Method, Setup
from outlast.train.plan import MethodStates, Plan
from tiny_runs import tiny

SETUP = Setup(steps=30, parts=("state", "recall"), lengths=(2, 4), tokens=12)


def dict_fields(control: Control) -> list[str]:
    return [f.name for f in fields(control) if isinstance(getattr(control, f.name), dict)]


class Numbered(Method):
    """Gives every dict of a control numbers by its field, the step and the key."""

    def control(self, step: int, state: dict[str, int], control: Control) -> None:
        for index, name in enumerate(dict_fields(control)):
            table = getattr(control, name)
            for place, key in enumerate(table):
                table[key] = 100.0 * index + 10 * step + place + 1


def numbered_plan() -> Plan:
    run = tiny(seeds=(0, 1), schedule="constant", warmup=0, lr=1.0)
    return MethodStates([Numbered()], SETUP, run).plan(0, 3)


def assert_controls_are_tables(names: list[str]) -> None:
    plan = numbered_plan()
    for index, name in enumerate(names):
        keys = len(SETUP.parts) if name == "weights" else len(PATHWAYS)
        steps = [
            [100 * index + 10 * step + place + 1 for place in range(keys)] for step in (0, 1, 2)
        ]
        expected = torch.tensor(steps, dtype=torch.float32)[:, None].expand(3, 2, keys)
        torch.testing.assert_close(plan.tables[name], expected, msg=name)


def test_every_dict_of_a_control_is_a_table_of_the_plan() -> None:
    names = dict_fields(Control.plain(SETUP))
    assert {"weights", "gate", "upstream_grad", "rate"} <= set(names)
    assert_controls_are_tables(names)


def test_a_new_control_needs_nothing_but_its_field(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class More(Control):
        noise: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PATHWAYS, 0.0))

    monkeypatch.setattr(plan_module, "Control", More)
    assert_controls_are_tables([*dict_fields(Control.plain(SETUP)), "noise"])


def test_resting_seed_learns_nothing_and_takes_the_gates_of_the_others() -> None:
    plan = numbered_plan()
    plan.tables["gate"][:, 1] = 0.5
    resting = plan.without([1])
    assert resting.tables["alive"].tolist() == [[1, 0]] * 3
    assert not resting.tables["active"][:, 1].any()
    assert torch.equal(resting.tables["active"][:, 0], plan.tables["active"][:, 0])
    assert (resting.tables["gate"][:, 1] == plan.tables["gate"][0, 0]).all()
    assert torch.equal(resting.tables["gate"][:, 0], plan.tables["gate"][:, 0])


def test_joined_plans_are_each_plan_with_rests_at_the_end() -> None:
    plan = numbered_plan()
    shorter = plan.map(lambda table: table[:2])
    both = Plan.join([plan, shorter])
    assert both.tables["alive"].tolist() == [[1, 1, 1, 1]] * 2 + [[1, 1, 0, 0]]
    assert both.lengths == plan.lengths * 2
    for name in ("rate", "weights", "keys", "active"):
        assert torch.equal(both.of_seeds([0, 1]).tables[name], plan.tables[name])
        assert torch.equal(both.of_seeds([2, 3]).tables[name][:2], shorter.tables[name])
    assert not both.tables["active"][2, 2:].any()
