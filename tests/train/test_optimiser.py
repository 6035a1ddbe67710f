"""Learning rates by hand; AdamW over a table of seeds against torch's over each seed's module."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from outlast.methods.base import PATHWAYS
from outlast.registry import tasks
from outlast.runs.spec import Settings
from outlast.train.optimiser import AdamW, learning_rate
from outlast.train.seeds import StackedModel

LINE = "gru > attention(heads=2, weights=scalable) > mlp @ 8, embedding=1"
SEEDS, STEPS, DECAY = (0, 3), 6, 0.1
TASK = tasks.build("modsum(modulus=5)")
ATTENTION = PATHWAYS.index("attention")


# ---- learning rates ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "step", "share"),
    [
        # 100 steps, warm after 10
        ("constant", 0, 0.1),
        ("constant", 4, 0.5),
        ("constant", 9, 1.0),
        ("constant", 99, 1.0),
        ("constant-cosine", 0, 0.1),
        ("constant-cosine", 50, 1.0),
        ("constant-cosine", 59, 1.0),
        ("constant-cosine", 60, 1.0),
        ("constant-cosine", 80, 0.505),  # half way down: 0.01 + 0.99 / 2
        ("constant-cosine", 70, 0.01 + 0.99 * (1 + math.sqrt(0.5)) / 2),
        ("cosine", 9, 0.01 + 0.99 * (1 + math.cos(0.09 * math.pi)) / 2),
        ("cosine", 50, 0.505),
        ("cosine", 75, 0.01 + 0.99 * (1 - math.sqrt(0.5)) / 2),
    ],
)
def test_learning_rate_of_a_step(schedule: Any, step: int, share: float):
    settings = Settings(steps=100, lr=0.02, schedule=schedule, warmup=10, decay_from=0.6)
    assert learning_rate(settings, step) == pytest.approx(0.02 * share)


@pytest.mark.parametrize(
    ("steps", "warmup", "length"), [(100, None, 10), (5, None, 0), (6000, None, 200), (100, 50, 50)]
)
def test_warm_up_is_at_most_a_tenth_of_training_unless_told(
    steps: int, warmup: int | None, length: int
) -> None:
    settings = Settings(steps=steps, warmup=warmup, schedule="constant")
    assert settings.warmup_steps == length
    rising = [learning_rate(settings, step) < settings.lr for step in range(min(steps, 250))]
    assert sum(rising) == max(0, length - 1)


@pytest.mark.parametrize("schedule", ["cosine", "constant-cosine"])
def test_schedule_falls_to_a_hundredth_and_never_below(schedule: Any):
    settings = Settings(steps=10_000, lr=1.0, schedule=schedule, warmup=0)
    assert learning_rate(settings, 0) == pytest.approx(1.0)
    assert learning_rate(settings, 9_999) == pytest.approx(0.01, rel=1e-4)
    assert all(0.01 <= learning_rate(settings, step) <= 1.0 for step in range(0, 10_000, 97))


@pytest.mark.parametrize("changed", [{"schedule": "constant"}, {"decay_from": 1.0}], ids=str)
def test_schedule_without_a_fall_is_level_also_past_its_end(changed: dict[str, Any]):
    """A run that is over is asked for its rate where others go on beside it."""
    settings = Settings(steps=20, lr=0.02, warmup=1, **changed)
    assert [learning_rate(settings, step) for step in range(21)] == [0.02] * 21


# ---- AdamW -------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(TASK.vocabulary, (len(SEEDS), 4, 7), generator=generator)
    return tokens, torch.randint(TASK.classes, tokens.shape, generator=generator)


def loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return 20 * F.cross_entropy(logits.flatten(0, -2), wanted.flatten(), reduction="sum")


class TorchSeed:
    """One seed, trained with torch's own means."""

    def __init__(self, stack: StackedModel, row: int, max_grad_norm: float) -> None:
        self.model, self.max_grad_norm = stack._fresh(stack.seeds[row], 0), max_grad_norm
        self.pathways = self.model.pathways()
        groups = []
        for name, parameter in self.model.named_parameters():
            decay = DECAY if parameter.dim() > 1 else 0.0
            groups.append({"params": [parameter], "weight_decay": decay, "name": name})
        self.optimiser = torch.optim.AdamW(groups, lr=1.0)

    def step(self, tokens, wanted, rates: dict[str, float], active: dict[str, bool]) -> None:
        self.optimiser.zero_grad()
        loss(self.model(tokens)[0], wanted).backward()
        for name, parameter in self.model.named_parameters():
            if not active[self.pathways[name]]:
                parameter.grad = None
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        for group in self.optimiser.param_groups:
            group["lr"] = rates[self.pathways[group["name"]]]
        self.optimiser.step()


def compare(max_grad_norm: float, active, rates) -> tuple[StackedModel, AdamW]:
    """Train both ways; `active` and `rates` give a table (seeds, pathways) for a step."""
    stack = StackedModel(LINE, TASK, SEEDS, torch.device("cpu"))
    assert stack.table.dtype == torch.float64
    optimiser = AdamW(stack, max_grad_norm, DECAY)
    theirs = [TorchSeed(stack, row, max_grad_norm) for row in range(len(SEEDS))]
    for step in range(STEPS):
        tokens, wanted = data(step)
        logits = stack.run(tokens)
        total = sum(loss(piece, want) for piece, want in zip(logits, wanted, strict=True))
        optimiser.update(stack.gradient(total), rates(step), active(step))
        for row, other in enumerate(theirs):
            other.step(
                tokens[row],
                wanted[row],
                dict(zip(PATHWAYS, rates(step)[row].tolist(), strict=True)),
                dict(zip(PATHWAYS, active(step)[row].bool().tolist(), strict=True)),
            )
    weights = stack.named(stack.table)
    for row, other in enumerate(theirs):
        for name, parameter in other.model.named_parameters():
            torch.testing.assert_close(weights[name][row], parameter.detach(), msg=name)
    return stack, optimiser


def everything(step: int) -> torch.Tensor:
    return torch.ones(len(SEEDS), len(PATHWAYS))


def one_rate(step: int) -> torch.Tensor:
    return torch.full((len(SEEDS), len(PATHWAYS)), 0.01 / (step + 1))


def own_rates(step: int) -> torch.Tensor:
    return torch.tensor([[0.01, 0.02, 0.005], [0.03, 0.001, 0.02]]) / (step + 1)


@pytest.mark.parametrize("max_grad_norm", [1.0, 1e6], ids=["clipped", "not clipped"])
@pytest.mark.parametrize("rates", [one_rate, own_rates])
def test_each_seed_is_updated_as_by_torchs_adamw(max_grad_norm, rates):
    compare(max_grad_norm, everything, rates)


def test_late_pathway_joins_as_in_torch_for_its_seed_alone():
    def late(step: int) -> torch.Tensor:
        table = everything(step)
        table[1, ATTENTION] = step >= 3
        return table

    _, optimiser = compare(1.0, late, own_rates)
    assert optimiser.counts.tolist() == [[6, 6, 6], [6, 3, 6]]


def test_inactive_pathway_is_left_exactly_as_it_is():
    stack = StackedModel(LINE, TASK, SEEDS, torch.device("cpu"))
    optimiser = AdamW(stack, 1.0, DECAY)
    before = stack.table.clone()
    active = everything(0)
    active[1, ATTENTION] = 0
    for _ in range(3):
        optimiser.update(torch.randn_like(stack.table), own_rates(0), active)
    columns = stack.columns["attention"]
    for table, was in ((stack.table, before), (optimiser.first, 0 * before)):
        assert torch.equal(table[1, columns], was[1, columns])
        assert not torch.isclose(table[0, columns], was[0, columns], atol=1e-12).all()
        for pathway in ("recurrent", "pointwise"):
            other = stack.columns[pathway]
            assert not torch.equal(table[1, other], was[1, other])
    assert optimiser.counts.tolist() == [[3, 3, 3], [3, 0, 3]]


def test_matrices_are_decayed_and_vectors_are_not():
    stack = StackedModel(LINE, TASK, SEEDS, torch.device("cpu"))
    optimiser = AdamW(stack, 1.0, DECAY)
    before = {n: w.clone() for n, w in stack.named(stack.table).items()}
    optimiser.update(torch.zeros_like(stack.table), one_rate(0), everything(0))
    for name, weight in stack.named(stack.table).items():
        matrix = weight[0].dim() > 1
        wanted = before[name] * (1 - 0.01 * DECAY) if matrix else before[name]
        torch.testing.assert_close(weight, wanted, msg=name)
    vectors = {n.rpartition(".")[2] for n, w in before.items() if w[0].dim() == 1}
    assert {"bias", "weight", "scale"} == vectors, "biases, norms, and scalable's temperature"


def test_reset_clears_the_moments_of_one_seed():
    stack = StackedModel(LINE, TASK, SEEDS, torch.device("cpu"))
    optimiser = AdamW(stack, 1.0, DECAY)
    optimiser.update(torch.randn_like(stack.table), one_rate(0), everything(0))
    kept = [t[0].clone() for t in (optimiser.first, optimiser.second, optimiser.counts)]
    optimiser.reset(1)
    for table, was in zip((optimiser.first, optimiser.second, optimiser.counts), kept, strict=True):
        assert not table[1].any()
        assert torch.equal(table[0], was)
        assert was.any()
