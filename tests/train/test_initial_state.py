"""Recurrent layers that begin with a state: whose state it is, and who has one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from outlast.errors import OutlastError, SpecError
from outlast.methods import Control, Setup
from outlast.methods import initial_state as method_module
from outlast.mixers.randomness import draw_normal
from outlast.models.model import Model
from outlast.registry import methods, mixers, tasks
from outlast.runs.spec import Settings
from outlast.streams import stream
from outlast.tasks import Batch
from outlast.testing.subjects import Subject, every_line
from outlast.train.initial_state import initial_state, repeated, state_inputs
from outlast.train.optimiser import learning_rate
from outlast.train.seeds import StackedModel
from tiny_runs import CPU, TASK, InMemory, create, in_threes, tiny

SETUP = Setup(steps=100, parts=("state",), lengths=(2, 6))
MODEL = "lstm > attention(heads=2) > gru | mlp @ 16"
KEYS = torch.tensor([5, 6])


@pytest.fixture(scope="module")
def stacked() -> StackedModel:
    return StackedModel(MODEL, tasks.build(TASK), (0, 1), CPU)


@pytest.fixture(scope="module")
def data() -> Batch:
    return tasks.build(TASK).sample_each((1, 4), 16, [stream(CPU, "x", seed) for seed in (0, 1)])


def shares(*rows: tuple[float, float, float]) -> Tensor:
    """A table of the plan: passed, noise and scale of each seed."""
    return torch.tensor(rows)


def run(stacked: StackedModel, data: Batch, table: Tensor) -> Tensor:
    initial = state_inputs(data, table, ("passed", "noise"))
    return stacked.run(data.inputs, keys=KEYS, initial=initial)


def run_alone(stacked: StackedModel, row: int, tokens: Tensor, state=None):
    weights = {name: weight[row] for name, weight in stacked.leaves.items()}
    return functional_call(stacked.model, weights, (tokens, state))


# ---- a state that is passed --------------------------------------------------------------------


def test_passed_state_is_that_after_the_sequence_of_the_row_before(stacked, data):
    """And no gradient reaches the pass that made it."""
    logits = run(stacked, data, shares((1.0, 0.0, 0.0), (0.0, 0.0, 0.0)))
    others = repeated(data.inputs, data.part)[0].roll(1, 0)
    _, last = run_alone(stacked, 0, others)
    state = tuple(
        last[number] if sublayer.pathway == "recurrent" else None
        for number, sublayer in enumerate(stacked.model.sublayers())
    )
    detached = (tuple(t.detach() for t in state[0]), None, state[2].detach(), None)
    wanted, _ = run_alone(stacked, 0, data.inputs[0], detached)
    torch.testing.assert_close(logits[0], wanted)
    plain, _ = run_alone(stacked, 1, data.inputs[1])
    torch.testing.assert_close(logits[1], plain, msg="the seed beside it begins with nothing")
    weight = stacked.leaves["embedding.weight"]
    (got,) = torch.autograd.grad(logits[0].pow(2).sum(), weight)
    (want,) = torch.autograd.grad(wanted.pow(2).sum(), weight)
    torch.testing.assert_close(got, want)


def test_each_sequence_has_a_state_with_its_probability(stacked, data):
    all_of_them = run(stacked, data, shares((1.0, 0.0, 0.0), (1.0, 0.0, 0.0)))
    none, some = (
        stacked.run(data.inputs),
        run(stacked, data, shares((0.5, 0.0, 0.0), (0.5, 0.0, 0.0))),
    )
    passed = torch.isclose(some, all_of_them, atol=1e-6).all(-1).all(-1)
    empty = torch.isclose(some, none, atol=1e-6).all(-1).all(-1)
    assert torch.equal(passed, ~empty)
    assert 0.2 < passed.float().mean() < 0.8
    assert not torch.equal(passed[0], passed[1])


def test_padding_is_replaced_by_the_sequence_itself():
    inputs = torch.tensor([[[1, 2, 3, 0, 0, 0, 0], [4, 5, 6, 7, 8, 9, 9]]])
    part = torch.tensor([[[-1, -1, 0, -1, -1, -1, -1], [-1, 0, -1, -1, -1, 1, -1]]])
    wanted = [[[1, 2, 3, 1, 2, 3, 1], [4, 5, 6, 7, 8, 9, 4]]]
    assert repeated(inputs, part).tolist() == wanted
    blank = torch.full_like(part, -1)
    assert repeated(inputs, blank).tolist() == [[[1] * 7, [4] * 7]], "a seed at rest"


@pytest.mark.parametrize(
    "line",
    [line for line in every_line(mixers) if mixers.build(line, width=32).pathway == "recurrent"],
)
def test_zeros_are_the_beginning_of_a_sequence(line):
    subject = Subject.mixer(line)
    mixer, x = subject.make(), subject.input()
    wanted, state = mixer(x)

    def zeros(state):
        return tuple(map(zeros, state)) if isinstance(state, tuple) else torch.zeros_like(state)

    torch.testing.assert_close(mixer(x, zeros(state))[0], wanted)


# ---- noise -------------------------------------------------------------------------------------


def noisy(model: Model, scale: float) -> tuple[Tensor, Tensor]:
    """The last h of an LSTM over many rows, and the noise that stands for it."""
    tokens = torch.randint(30, (4000, 5), generator=torch.Generator().manual_seed(0))
    _, last = model(tokens)
    initial = {"tokens": tokens, "noise": torch.tensor(1.0), "scale": torch.tensor(scale)}
    begun = initial_state(model, last, initial, torch.tensor(3))
    assert begun[1] is begun[3] is None, "attention begins with nothing"
    return last[0][0], begun[0][0]


def test_noise_has_the_mean_and_the_scaled_spread_of_last_states(stacked):
    for scale in (1.0, 2.5):
        last, noise = noisy(stacked.model, scale)
        torch.testing.assert_close(noise.mean(0), last.mean(0), rtol=0, atol=0.05 * scale)
        torch.testing.assert_close(noise.std(0), scale * last.std(0), rtol=0.06, atol=0)
    assert len(noise.unique()) > 0.9 * noise.numel()


def test_normal_numbers_are_normal():
    numbers = draw_normal(torch.tensor(1), (400, 500))
    assert numbers.isfinite().all()
    assert numbers.mean().item() == pytest.approx(0, abs=0.01)
    assert numbers.std().item() == pytest.approx(1, abs=0.01)
    assert (numbers.abs() > 1.96).float().mean().item() == pytest.approx(0.05, abs=0.003)
    assert (numbers[:, 1:] * numbers[:, :-1]).mean().item() == pytest.approx(0, abs=0.01)


# ---- the methods -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("state_passing(p=0.25, from=0.5)", {"passed": 0.25, "noise": 0.0, "scale": 0.0}),
        ("state_noise(scale=2, p=0.3, from=50)", {"passed": 0.0, "noise": 0.3, "scale": 2.0}),
    ],
)
def test_method_gives_sequences_a_state_from_its_step_on(line, wanted):
    method = methods.build(line)
    state = method.begin(SETUP)
    for step in (0, 49, 50, 99):
        control = Control.plain(SETUP)
        method.control(step, state, control)
        assert control.initial_state == (
            wanted if step >= 50 else Control.plain(SETUP).initial_state
        )


@pytest.mark.parametrize("line", ["state_passing(from=6)", "state_noise(from=6)"])
def test_run_is_the_plain_run_until_then(line):
    plain, passing = (InMemory(in_threes(*specs, seeds=(0,))) for specs in ((), (line,)))
    tables = [each.steps(6).run.seeds.model.table.clone() for each in (plain, passing)]
    assert torch.equal(*tables)
    after = [each.steps(9).run.seeds.model.table for each in (plain, passing)]
    assert not torch.equal(*after)


def test_all_weights_learn_in_bfloat16_too():
    """A weight that is cast in a pass without gradients must not stay without them."""
    run = InMemory(in_threes("state_passing(p=1)", seeds=(0,), precision="bf16", weight_decay=0))
    model = run.run.seeds.model
    before = model.table.clone()
    run.steps(6)
    moved = model.named(model.table - before)
    assert all(table.any() for table in moved.values())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("state_passing(p=0)", "p=0.0: expected a probability > 0 and up to 1"),
        ("state_noise(scale=0)", "scale=0.0: expected a factor > 0"),
        ("state_noise(from=1.5)", "from=1.5: expected a step >= 0"),
    ],
)
def test_bad_argument_is_refused(line, says):
    with pytest.raises(SpecError) as caught:
        methods.build(line)
    assert says in str(caught.value)


def test_advice_to_begin_late_names_a_schedule_under_which_weights_still_move():
    late = int(0.95 * Settings().steps)
    assert learning_rate(Settings(), late) < 0.1 * Settings().lr
    assert learning_rate(Settings(schedule="constant"), late) == Settings().lr
    page = (Path(__file__).parents[2] / "docs" / "usage.md").read_text("utf-8")
    assert '`--method "state_passing(from=0.95)" --schedule constant`' in page
    assert "--schedule constant" in (method_module.__doc__ or "")


def test_model_without_recurrence_is_refused(tmp_path):
    run = tiny("state_passing", model="attention(heads=2) > mlp @ 16")
    with pytest.raises(OutlastError, match="no recurrent mixer that could begin with a state"):
        create(run, tmp_path / "run")
