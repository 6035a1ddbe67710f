"""AdamW's fused passes against the reference: in Triton's interpreter, or on a GPU.

That the reference is torch's AdamW is in tests/train/test_optimiser.py.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
import torch
from torch import Tensor

from outlast.kernels import adamw
from outlast.kernels.adamw import Columns, op, reference

fused = pytest.importorskip("outlast.kernels.adamw.triton")
# the interpreter's own
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SEEDS, PATHWAYS, LATE = 3, 3, 1  # the pathway that joins late
# several blocks of weights in three pathways, and a table where one pathway is missing; after the
# weights there are columns that hold none
TABLES = {
    "three pathways": ({0: slice(0, 700), 1: slice(700, 1900), 2: slice(1900, 2100)}, 2112),
    "two pathways": ({0: slice(0, 37), 2: slice(37, 101)}, 112),
}
tables = pytest.mark.parametrize("table", TABLES)


@dataclass
class State:
    """What a step changes."""

    weights: Tensor
    first: Tensor
    second: Tensor
    counts: Tensor


def fresh(table: str) -> tuple[State, Columns]:
    slices, width = TABLES[table]
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(SEEDS, width, generator=generator)
    decays = (torch.rand(width, generator=generator) < 0.7).float()
    end = max(s.stop for s in slices.values())
    weights[:, end:], decays[end:] = 0, 0
    zeros = torch.zeros_like(weights)
    state = State(weights, zeros, zeros.clone(), torch.zeros(SEEDS, PATHWAYS))
    moved = State(*(getattr(state, f.name).to(DEVICE) for f in fields(state)))
    return moved, Columns.of(slices, decays.to(DEVICE))


def step(number: int, state: State, columns: Columns) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient, rates and active of a step; the second seed's late pathway joins at step 2."""
    generator = torch.Generator().manual_seed(number)
    shape = (SEEDS, state.weights.shape[1])
    gradient = torch.randn(shape, generator=generator)
    # short of the norm to clip at, about it, past it; seldom as even as a draw of randn
    gradient *= torch.tensor([1e-3, 0.02, 10.0])[:, None]
    gradient *= torch.rand(shape[1], generator=generator) ** 4
    gradient[:, columns.pathway.cpu() < 0] = 0
    rates = torch.rand(SEEDS, PATHWAYS, generator=generator) / 100
    active = torch.ones_like(rates)
    active[1, LATE] = number >= 2
    return gradient.to(DEVICE), rates.to(DEVICE), active.to(DEVICE)


def per_seed(value) -> Tensor:
    return torch.tensor(value, dtype=torch.float32, device=DEVICE).expand(SEEDS).contiguous()


def run(module, state: State, columns: Columns, gradient, rates, active, clip=1.0, decay=0.1):
    module.update(
        state.weights,
        gradient.clone(),
        state.first,
        state.second,
        state.counts,
        rates,
        active,
        per_seed(clip),
        per_seed(decay),
        columns,
    )


@tables
@pytest.mark.parametrize("clip", [1.0, 1e6])
def test_fused_update_matches_the_reference(table, clip):
    (plain, columns), (quick, _) = fresh(table), fresh(table)
    for number in range(4):
        inputs = step(number, plain, columns)
        before = quick.weights.clone()
        run(reference, plain, columns, *inputs, clip)
        run(fused, quick, columns, *inputs, clip)
        for name in ("first", "second", "counts"):
            one, two = (getattr(state, name) for state in (quick, plain))
            torch.testing.assert_close(
                one, two, rtol=2e-6, atol=1e-6 * two.max(), msg=lambda text, n=name: n + text
            )
        moved = [state.weights - before for state in (quick, plain)]
        torch.testing.assert_close(*moved, rtol=1e-4, atol=1e-6)
        if number < 2 and LATE in columns.slices:
            late = columns.slices[LATE]
            assert torch.equal(quick.weights[1, late], before[1, late])
            assert not quick.first[1, late].any()


def test_gradient_that_is_not_finite_spoils_its_own_seed_alone():
    (plain, columns), (quick, _) = fresh("three pathways"), fresh("three pathways")
    gradient, rates, active = step(0, plain, columns)
    gradient[1, 7] = torch.nan
    run(reference, plain, columns, gradient, rates, active)
    run(fused, quick, columns, gradient, rates, active)
    torch.testing.assert_close(quick.weights, plain.weights, equal_nan=True)
    assert quick.weights[[0, 2]].isfinite().all()
    assert quick.weights[1].isnan().any()


@pytest.mark.parametrize("module", [reference, fused], ids=["reference", "fused"])
def test_seed_at_rest_is_left_as_it_is_whatever_its_gradient(module):
    state, columns = fresh("three pathways")
    gradient, rates, active = step(0, state, columns)
    gradient[1], active[1] = torch.nan, 0
    before = [getattr(state, f.name)[1].clone() for f in fields(state)]
    run(module, state, columns, gradient, rates, active)
    after = [getattr(state, f.name)[1] for f in fields(state)]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert state.weights.isfinite().all()


@pytest.mark.parametrize("module", [reference, fused], ids=["reference", "fused"])
def test_each_seed_may_have_a_clip_and_a_decay_of_its_own(module):
    clips, decays = (0.1, 1.0, 1e6), (0.0, 0.1, 10.0)
    mixed, columns = fresh("three pathways")
    alone = [fresh("three pathways")[0] for _ in clips]
    for number in range(2):
        inputs = step(number, mixed, columns)
        run(module, mixed, columns, *inputs, clips, decays)
        for state, clip, decay in zip(alone, clips, decays, strict=True):
            run(module, state, columns, *inputs, clip, decay)
    for row, state in enumerate(alone):
        assert torch.equal(mixed.weights[row], state.weights[row])
    assert not torch.equal(alone[0].weights[2], alone[2].weights[2])


def test_without_gpu_the_reference_is_taken():
    table = torch.zeros(SEEDS, 16)
    assert op.back_end(table, table) is reference


@pytest.mark.gpu
def test_on_a_gpu_the_kernel_is_taken_and_a_seed_alone_is_the_same_to_the_bit():
    def trained(seeds: list[int]) -> Tensor:
        state, columns = fresh("three pathways")
        part = State(*(getattr(state, f.name)[seeds] for f in fields(state)))
        assert op.back_end(part.weights, part.weights) is fused
        clip, decay = per_seed(1.0)[seeds], per_seed(0.1)[seeds]
        for number in range(3):
            gradient, rates, active = (t[seeds] for t in step(number, state, columns))
            adamw.update(
                part.weights,
                gradient,
                part.first,
                part.second,
                part.counts,
                rates,
                active,
                clip,
                decay,
                columns,
            )
        return part.weights

    together = trained([0, 1, 2])
    assert torch.equal(trained([1])[0], together[1])
