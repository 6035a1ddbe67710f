"""The fused AdamW against the plain operations: in Triton's interpreter, or on a GPU."""

import pytest
import torch

from outlast.methods.base import PATHWAYS
from outlast.registry import tasks
from outlast.train.optimiser import AdamW
from outlast.train.seeds import StackedModel

pytest.importorskip("triton")
# the interpreter's own
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

TASK = tasks.build("modsum(modulus=5)")
# a table of several blocks of weights, and one whose pathways are not all there
LINES = ["gru > attention(heads=2, weights=scalable) > mlp @ 10", "lstm @ 4"]
SEEDS = (0, 3, 5)
SPARE = slice(-11, None)  # at the end of both tables some columns belong to no weight


def pair(line: str, clip: float) -> list[AdamW]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return [AdamW(StackedModel(line, TASK, SEEDS, device), clip, 0.1) for _ in range(2)]


def step(number: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradient, rates and active of a step; the second seed's attention joins at step 2."""
    generator = torch.Generator().manual_seed(number)
    gradient = torch.randn(like.shape, generator=generator)
    # short of the norm to clip at, about it, past it; seldom as even as a draw of randn
    gradient[:, SPARE] = 0
    gradient *= torch.tensor([1e-3, 0.02, 10.0])[:, None] * torch.rand(like.shape[1]) ** 4
    rates = torch.rand(len(SEEDS), len(PATHWAYS), generator=generator) / 100
    active = torch.ones_like(rates)
    active[1, PATHWAYS.index("attention")] = number >= 2
    return gradient.to(like.device), rates.to(like.device), active.to(like.device)


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("clip", [1.0, 1e6, 1], ids=str)
def test_it_is_the_plain_update_to_rounding(line, clip):
    plain, fused = pair(line, clip)
    for number in range(4):
        gradient, rates, active = step(number, plain.stack.table)
        before = fused.stack.table.clone()
        with torch.no_grad():
            fused._update_fused(gradient.clone(), rates, active)
            plain._update_plain(gradient, rates, active)
        for name in ("first", "second", "counts"):
            tables = [getattr(one, name) for one in (fused, plain)]
            torch.testing.assert_close(
                *tables, rtol=2e-6, atol=1e-6 * tables[1].max(), msg=lambda t, n=name: n + t
            )
        moved = [one.stack.table - before for one in (fused, plain)]
        torch.testing.assert_close(*moved, rtol=1e-4, atol=1e-6)
        if number < 2 and "attention" in plain.stack.columns:
            columns = plain.stack.columns["attention"]
            assert torch.equal(fused.stack.table[1, columns], before[1, columns])
            assert not fused.first[1, columns].any()


def test_a_gradient_that_is_no_number_spoils_its_own_seed_alone():
    plain, fused = pair(LINES[0], 1.0)
    gradient, rates, active = step(0, plain.stack.table)
    gradient[1, 7] = torch.nan
    with torch.no_grad():
        fused._update_fused(gradient.clone(), rates, active)
        plain._update_plain(gradient, rates, active)
    torch.testing.assert_close(fused.stack.table, plain.stack.table, equal_nan=True)
    assert fused.stack.table[[0, 2]].isfinite().all()
    assert fused.stack.table[1].isnan().any()


def test_a_seed_at_rest_is_left_as_it_is_whatever_its_gradient():
    plain, fused = pair(LINES[0], 1.0)
    for one in (plain, fused):
        gradient, rates, active = step(0, plain.stack.table)
        gradient[1], active[1] = torch.nan, 0
        before = [t[1].clone() for t in (one.stack.table, one.first, one.second, one.counts)]
        with torch.no_grad():
            (one._update_plain if one is plain else one._update_fused)(gradient, rates, active)
        after = (one.stack.table, one.first, one.second, one.counts)
        assert all(torch.equal(a[1], b) for a, b in zip(after, before, strict=True))
        assert one.stack.table.isfinite().all()


@pytest.mark.parametrize("way", ["_update_plain", "_update_fused"])
def test_each_seed_may_have_a_clip_and_a_decay_of_its_own(way):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    clips, decays = (0.1, 1.0, 1e6), (0.0, 0.1, 10.0)
    mixed = AdamW(StackedModel(LINES[0], TASK, SEEDS, device), clips, decays)
    alone = [
        AdamW(StackedModel(LINES[0], TASK, SEEDS, device), c, d)
        for c, d in zip(clips, decays, strict=True)
    ]
    for number in range(2):
        gradient, rates, active = step(number, mixed.stack.table)
        for one in (mixed, *alone):
            with torch.no_grad():
                getattr(one, way)(gradient.clone(), rates, active)
    for row, one in enumerate(alone):
        assert torch.equal(mixed.stack.table[row], one.stack.table[row])
    assert not torch.equal(alone[0].stack.table[2], alone[2].stack.table[2])


@pytest.mark.gpu
def test_on_a_gpu_it_is_taken_and_a_seed_alone_is_the_same_to_the_bit():
    def trained(seeds: list[int]) -> torch.Tensor:
        stack = StackedModel(LINES[0], TASK, [SEEDS[s] for s in seeds], torch.device("cuda"))
        optimiser = AdamW(stack, 1.0, 0.1)
        optimiser._update_plain = None  # not to be called
        for number in range(3):
            gradient, rates, active = step(number, stack.table.new_empty(3, stack.width))
            optimiser.update(gradient[seeds].clone(), rates[seeds], active[seeds])
        return stack.table

    torch.manual_seed(1)
    together = trained([0, 1, 2])
    torch.manual_seed(1)
    assert torch.equal(trained([1])[0], together[1])
