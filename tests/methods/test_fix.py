"""`fix`, and weights that are uniform or hard: what is fixed never moves, phase 1 stays."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outlast.errors import SpecError
from outlast.workflow.create import canonical, describe
from tiny_runs import InMemory, in_threes, tiny

DAT = "dat(switch=9, rewarm=0)"
QKV = "body.nodes.1.mixer.qkv.weight"
WIDTH = 16
ROWS = {"qk": slice(0, 2 * WIDTH), "values": slice(2 * WIDTH, 3 * WIDTH)}


def model(weights: str = "softmax") -> str:
    return f"lstm > attention(heads=2, weights={weights}) > mlp @ {WIDTH}, head=2"


def training(*methods: str, weights: str = "softmax", **changed: float) -> InMemory:
    usual = {"steps": 18, "lr": 0.01, "warmup": 0, "max_grad_norm": 0.05, "weight_decay": 0.3}
    return InMemory(in_threes(*methods, model=model(weights), **(usual | changed)))


def weights_of(run: InMemory, index: int = 0) -> dict[str, Tensor]:
    return {name: w.clone() for name, w in run.runs[index].test_weights().items()}


@pytest.mark.parametrize("part", ["qk", "values", "both"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_fixed_rows_stay_bit_for_bit_and_all_others_learn(part: str, weight_decay: float) -> None:
    run = training(f"fix({part})", weight_decay=weight_decay)
    start = weights_of(run)
    run.steps(18)
    after = weights_of(run)
    for name, rows in ROWS.items():
        same = torch.equal(start[QKV][:, rows], after[QKV][:, rows])
        assert same == (part in (name, "both")), f"{name} with fix({part})"
    moved = {n for n in start if not torch.equal(start[n], after[n])}
    assert moved | {QKV} == set(start)


@pytest.mark.parametrize(
    ("methods", "weights"),
    [
        ((DAT, "fix(qk)"), "softmax"),
        (("fix(values)", DAT), "softmax"),
        ((DAT,), "uniform"),
        ((DAT,), "hard"),
    ],
)
def test_first_phase_is_bit_for_bit_that_of_plain_dat(
    methods: tuple[str, ...], weights: str
) -> None:
    plain, other = training(DAT), training(*methods, weights=weights)
    for run in (plain, other):
        run.steps(9)
    assert other.events(0) == plain.events(0) == [(9, "switch")]
    assert other.lines == plain.lines
    expected = weights_of(plain)
    assert [n for n, w in weights_of(other).items() if not torch.equal(w, expected[n])] == []
    for run in (plain, other):
        run.steps(18)
    assert other.lines != plain.lines, "the second phase is to differ"


def test_run_with_fixed_weights_changes_no_run_trained_beside_it() -> None:
    plain, fixed = (in_threes(*m, model=model(), steps=18) for m in ((DAT,), (DAT, "fix(qk)")))
    together, alone = InMemory(plain, fixed), InMemory(plain)
    start = weights_of(together, 1)[QKV]
    together.steps(18)
    alone.steps(18)
    for name, weight in weights_of(alone).items():
        torch.testing.assert_close(weights_of(together)[name], weight, rtol=0, atol=5e-4, msg=name)
    after = weights_of(together, 1)[QKV]
    assert torch.equal(after[:, ROWS["qk"]], start[:, ROWS["qk"]])
    assert not torch.equal(after[:, ROWS["values"]], start[:, ROWS["values"]])


def test_model_without_attention_is_refused() -> None:
    run = tiny("fix(qk)", model="lstm > mlp @ 16, head=2")
    with pytest.raises(SpecError, match=r"fix.* cannot be combined with model=lstm > mlp"):
        describe(canonical(run))
