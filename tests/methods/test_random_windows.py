"""Random windows: drawn by hash for each seed and step, kept to by all attention, off in tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.func import vmap

from outlast.errors import SpecError
from outlast.mixers.attention import blocks
from outlast.mixers.base import Context
from outlast.models import build_model
from outlast.registry import schemes, tasks, weightings
from outlast.testing.subjects import plain_lines
from outlast.train.plan import Plan
from outlast.train.seeds import StackedModel
from outlast.train.trainer import Trainer
from outlast.workflow.create import canonical, describe
from small_attention import TOKENS, close, draw, make
from tiny_runs import (
    CPU,
    TASK,
    InMemory,
    Killed,
    assert_each_seed_is_alone,
    assert_same_run,
    assert_seed_is,
    create,
    fails,
    in_threes,
    resume,
    tiny,
    trained,
)

SEEDS = (3, 0, 7)
WINDOWS = "random_windows(from=2, to=5, until=1)"
#: two kinds of attention after a recurrence
MODEL = "lstm > attention(rope, heads=2, weights=scalable) > attention(tra, heads=2) @ 16"
SPECS = [
    *(f"attention({line}, heads=2)" for line in plain_lines(schemes)),
    *(f"attention(heads=2, weights={line})" for line in plain_lines(weightings)),
]


def within(layer, x, window: int | None, state=None, positions=None):
    """Attention within a window."""
    layer.context = Context(
        positions=positions, window=None if window is None else torch.tensor(window)
    )
    try:
        return layer(x, state)
    finally:
        layer.context = Context()


# --- attention -----------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS)
def test_window_hides_the_keys_before_it_and_no_others(spec, monkeypatch):
    layer, x = make(spec), draw()
    close(within(layer, x, TOKENS)[0], layer(x)[0])
    whole = within(layer, x, 3)[0]
    changed = x.clone()
    changed[:, 1] = draw(seed=1)[:, 1]
    moved = (within(layer, changed, 3)[0] - whole).abs().amax((0, 2)) > 1e-12
    # the convolutions of dape see two keys farther
    far = moved[6:] if "dape" in spec else moved[4:]
    assert moved[1:4].any(), "a key within the window does not matter"
    assert not far.any(), f"tokens {moved.nonzero().flatten().tolist()} see the token at 1"
    monkeypatch.setattr(blocks, "BUDGET", 1)
    close(within(layer, x, 3)[0], whole)


@pytest.mark.parametrize("spec", ["attention(alibi, heads=2)", "attention(tra, heads=2)"])
@pytest.mark.parametrize("sizes", [[1] * TOKENS, [3, 4]], ids=str)
def test_chunks_within_a_window_equal_the_whole(spec, sizes):
    layer, x = make(spec), draw()
    state, parts = None, []
    for chunk in x.split(sizes, 1):
        y, state = within(layer, chunk, 3, state)
        parts.append(y)
    close(torch.cat(parts, 1), within(layer, x, 3)[0])


def test_window_counts_keys_where_positions_have_gaps():
    layer, x = make("attention(alibi, heads=2)"), draw()
    drawn = torch.tensor([0, 10, 20, 30, 40, 50, 60])
    y = within(layer, x, 2, positions=drawn)[0]
    changed = x.clone()
    changed[:, 3] = 0
    moved = (within(layer, changed, 2, positions=drawn)[0] - y).abs().amax((0, 2)) > 1e-12
    assert moved.nonzero().flatten().tolist() == [3, 4]


@pytest.mark.parametrize("budget", [blocks.BUDGET, 1])
@pytest.mark.parametrize("spec", ["attention(alibi, heads=2)", "attention(tra, heads=2)"])
def test_each_seed_has_its_own_window_gradients_too(spec, budget, monkeypatch):
    monkeypatch.setattr(blocks, "BUDGET", budget)
    layer = make(spec)
    x = torch.stack([draw(seed=seed) for seed in range(2)])

    def one(x, window):
        layer.context = Context(window=window)
        return layer(x)[0]

    together = vmap(one)(x, torch.tensor([2, 5]))
    layer.context = Context()
    alone = torch.stack([within(layer, x[seed], (2, 5)[seed])[0] for seed in range(2)])
    close(together, alone)
    weights = list(layer.parameters())
    for one_gradient, other in zip(
        torch.autograd.grad((together**2).sum(), weights),
        torch.autograd.grad((alone**2).sum(), weights),
        strict=True,
    ):
        close(one_gradient, other)


def test_scalable_weights_count_the_keys_in_the_window():
    layer, x = make("attention(heads=2, weights=scalable)"), draw()
    shown = within(layer, x, 3)[0][:, -1]
    close(shown, layer(x[:, -3:])[0][:, -1])  # three keys, whatever lies before them


def test_model_takes_a_window_and_refuses_what_is_none():
    model = build_model("lstm > attention(heads=2) @ 8", 5, 5, seed=0)
    tokens = torch.arange(6)[None] % 5
    assert not torch.allclose(model(tokens, window=torch.tensor(2))[0], model(tokens)[0])
    close(model(tokens, window=torch.tensor(6))[0], model(tokens)[0], 1e-5)
    for wrong in (3, torch.tensor(0), torch.tensor([2]), torch.tensor(2.0)):
        with pytest.raises(SpecError, match=r"window=.*expected a whole number >= 1 as a tensor"):
            model(tokens, window=wrong)


# --- training ------------------------------------------------------------------------------------


def plan(*methods: str, begin: int = 0, end: int = 30) -> Plan:
    return InMemory(in_threes(*methods, seeds=SEEDS, model=MODEL)).run.methods.plan(begin, end)


def test_windows_are_new_for_each_seed_and_step_whatever_the_block():
    window = plan(WINDOWS).tables["window"]
    assert window.shape == (30, 3)
    assert window.unique().tolist() == [2, 3, 4, 5]
    assert not (window[:, 0] == window[:, 1]).all()
    assert torch.equal(plan(WINDOWS, begin=7, end=11).tables["window"], window[7:11])
    assert not plan().tables["window"].any()


def test_ends_draws_two_sizes_and_the_last_steps_see_all_keys():
    window = plan("random_windows(from=2, draw=ends, until=0.5)").tables["window"]
    task = tasks.build(TASK)
    assert window[:15].unique().tolist() == [2, task.tokens(task.lengths[1])]
    assert not window[15:].any()


def test_seed_among_others_is_the_seed_alone_with_windows():
    assert_each_seed_is_alone(in_threes(WINDOWS, seeds=SEEDS, model=MODEL))


def test_killed_run_with_windows_resumes_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Killed between two checkpoints; the windows end in the course of a block."""
    line = "random_windows(from=2, until=0.7)"
    run = in_threes(line, model=MODEL, steps=15, checkpoint_every=6)
    whole, killed = trained(run, tmp_path / "whole"), create(run, tmp_path / "killed")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "next_block", fails(Trainer.next_block, 4, Killed()))
        with pytest.raises(Killed):
            resume(killed)
    assert resume(killed)
    assert_same_run(whole, killed)


def test_runs_with_and_without_windows_train_together():
    runs = [
        in_threes(*methods, seeds=seeds, model=MODEL)
        for methods, seeds in (((WINDOWS,), (0, 1)), ((), (0,)))
    ]
    together = InMemory(*runs).steps(9)
    for index, run in enumerate(runs):
        alone = InMemory(run).steps(9)
        for seed in run.seeds:
            assert_seed_is(together, alone, seed, index)
    assert together.losses(0, 0) != together.losses(0, 1), "windows change nothing"


@pytest.mark.parametrize(
    ("method", "model", "message"),
    [
        (WINDOWS, "lstm > mlp @ 16", r"random_windows.* cannot be combined with model=lstm > mlp"),
        ("random_windows(from=40)", MODEL, "from=40: expected at most 11, the tokens of a"),
        ("random_windows(from=5, to=4)", MODEL, "to=4: expected a number of keys from from=5 on"),
    ],
)
def test_windows_that_make_no_sense_are_refused(method, model, message):
    with pytest.raises(SpecError, match=message):
        describe(canonical(tiny(method, model=model)))


@pytest.mark.gpu
def test_gpu_keeps_to_the_window_as_the_cpu_does():
    task = tasks.build(TASK)
    tokens = task.sample(4, 8, torch.Generator().manual_seed(0)).inputs.repeat(2, 1, 1)
    logits = []
    for device in (CPU, torch.device("cuda")):
        stacked = StackedModel(MODEL, task, (0, 1), device)
        windows = torch.tensor([2, 5], device=device)
        logits.append(stacked.run(tokens.to(device), windows=windows).cpu())
    torch.testing.assert_close(*logits, rtol=1e-3, atol=1e-3)
