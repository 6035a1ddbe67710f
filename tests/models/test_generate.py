"""`Model.generate`: the same tokens as a new pass over the whole sequence for each of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from outlast.errors import OutlastError, SpecError
from outlast.models import Model, build_model

TOKENS = 11
LINES = (
    "lstm > mlp @ 16",
    "gru > attention(rope, heads=2) > mlp @ 16",
    "2 x (lstm > attention(tra, heads=2) > mlp) @ 16",
    "lstm | attention(stick_breaking, heads=2) > mlp @ 16",
    "attention(alibi, heads=2, weights=doubly_normalised) > mlp @ 16, norm=rms",
)


def model_of(line: str, seed: int = 0) -> Model:
    """A model whose tokens depend on much: one as it is drawn repeats itself."""
    model, generator = build_model(line, TOKENS, 2, seed), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += torch.randn(weight.shape, generator=generator) / 2
    return model.eval()


def prompt(rows: int = 3, tokens: int = 5) -> Tensor:
    return torch.randint(TOKENS, (rows, tokens), generator=torch.Generator().manual_seed(7))


@torch.no_grad()
def recomputed(model: Model, tokens: Tensor, n: int) -> Tensor:
    """Greedy generation without a state."""
    positions = model.positions(tokens.shape[1] + n)
    for _ in range(n):
        count = tokens.shape[1]
        part = None if positions is None else positions[:count]
        logits, _ = model(tokens, positions=part)
        tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], 1)
    return tokens


@pytest.mark.parametrize("line", LINES)
def test_greedy_tokens_are_those_of_whole_passes(line: str) -> None:
    model = model_of(line)
    generated = model.generate(prompt(), 20)
    assert torch.equal(generated, recomputed(model, prompt(), 20))
    assert generated.dtype == torch.int64


def test_drawn_positions_of_a_generation_are_those_of_its_whole_length() -> None:
    model = model_of(LINES[1])
    model.span = 400
    generated = model.generate(prompt(), 12)
    assert torch.equal(generated, recomputed(model, prompt(), 12))
    model.span = 0
    assert not torch.equal(generated, model.generate(prompt(), 12))


def test_each_token_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, lengths = model_of(LINES[0]), []
    forward = model.forward

    def counting(tokens: Tensor, *rest: Any, **more: Any) -> Any:
        lengths.append(tokens.shape[1])
        return forward(tokens, *rest, **more)

    monkeypatch.setattr(model, "forward", counting)
    model.generate(prompt(), 4)
    assert lengths == [5, 1, 1, 1]


def test_sampling_depends_on_the_seed_alone() -> None:
    model = model_of(LINES[2])
    before = torch.random.get_rng_state()
    first = model.generate(prompt(), 20, temperature=2.0, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(model.generate(prompt(), 20, temperature=2.0, seed=1), first)
    assert not torch.equal(model.generate(prompt(), 20, temperature=2.0, seed=2), first)
    generator = torch.Generator().manual_seed(1)
    assert torch.equal(model.generate(prompt(), 20, temperature=2.0, seed=generator), first)
    assert not torch.equal(model.generate(prompt(), 20, temperature=2.0, seed=generator), first)


def test_shares_of_drawn_tokens_are_the_softmax() -> None:
    model = model_of(LINES[0])
    tokens = prompt(1).expand(4000, -1)
    with torch.no_grad():
        logits = model(tokens[:1])[0][0, -1]
    for top_k in (None, 3):
        kept = logits if top_k is None else logits.topk(top_k).values
        wanted = torch.where(logits >= kept.min(), logits / 0.7, -torch.inf).softmax(-1)
        drawn = model.generate(tokens, 1, temperature=0.7, top_k=top_k)[:, -1]
        shares = torch.bincount(drawn, minlength=TOKENS) / len(drawn)
        torch.testing.assert_close(shares, wanted, rtol=0, atol=0.03)
        assert ((shares > 0) <= (wanted > 0)).all()


def test_top_1_is_greedy() -> None:
    model = model_of(LINES[1])
    likeliest = model.generate(prompt(), 8)
    assert torch.equal(model.generate(prompt(), 8, temperature=1.0, top_k=1), likeliest)


def test_int32_tokens_stay_int32() -> None:
    assert model_of(LINES[0]).generate(prompt().int(), 2).dtype == torch.int32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, r"n=0: expected a whole number from 1 to"),
        ({"n": 2.5}, r"n=2.5 \(float\): expected a whole number"),
        ({"n": True}, r"n=True: expected a whole number"),
        ({"temperature": -1}, r"temperature=-1 \(int\): expected 0 \(the likeliest token\) or"),
        ({"temperature": float("nan")}, r"temperature=nan"),
        ({"temperature": "hot"}, r"temperature='hot'"),
        ({"temperature": 1, "top_k": 0}, r"top_k=0: expected a whole number from 1 to 11"),
        ({"temperature": 1, "top_k": 12}, r"top_k=12"),
        ({"top_k": 3}, r"top_k=3 cannot be combined with temperature=0"),
        ({"seed": -1}, r"seed=-1"),
        ({"seed": "a"}, r"seed='a'"),
        ({"tokens": [[1, 2]]}, r"tokens=\[\[1, 2\]\] \(list\): expected whole numbers"),
        ({"tokens": prompt()[:, :0]}, r"tokens=.*with batch >= 1 and tokens >= 1"),
        ({"tokens": prompt() + TOKENS}, r"tokens=\d+: expected whole numbers from 0 to 10"),
    ],
)
def test_bad_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    call = {"tokens": prompt(), "n": 2, **arguments}
    with pytest.raises(SpecError, match=message):
        model_of(LINES[0]).generate(**call)


@pytest.mark.parametrize("head", [3, 20])
def test_outputs_that_are_no_tokens_are_refused(head: int) -> None:
    with pytest.raises(SpecError, match=rf"head={head}: expected an output for each of the 11"):
        model_of(f"lstm @ 8, head={head}").generate(prompt(), 1)


def test_ceiling_is_an_error_before_the_work() -> None:
    model = model_of("attention(learned(ceiling=8), heads=2) @ 8")
    assert model.generate(prompt(), 4).shape == (3, 9)  # the last is not read
    with pytest.raises(SpecError, match=r"n=5: expected at most 4 after 5 tokens"):
        model.generate(prompt(), 5)


def test_nan_logits_are_an_error() -> None:
    model = model_of(LINES[0])
    with torch.no_grad():
        model.head.bias[0] = float("nan")
    with pytest.raises(OutlastError, match="logits are NaN"):
        model.generate(prompt(), 1)
