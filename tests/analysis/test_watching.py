"""What is watched is what happens."""

import itertools

import pytest
import torch

import outlast
from outlast.analysis.watching import hooked, layers, watch
from outlast.mixers.attention.look import AttentionBlock
from outlast.models.model import Model

LINES = (
    "lstm > attention(nope, heads=2) > mlp",
    "attention(tra, heads=2)",
    "attention(stick_breaking, heads=2)",
    "attention(alibi, heads=2, weights=entmax)",
    "lstm | attention(rope, heads=2)",
)


def model_of(line: str) -> Model:
    torch.manual_seed(0)
    return outlast.model(f"2 x ({line}) @ 16", outlast.task("parity"))


@pytest.mark.parametrize("line", LINES)
def test_watching_changes_nothing(line: str) -> None:
    model, tokens = model_of(line).train(), torch.randint(3, (2, 9))
    expected = model(tokens)[0].detach()
    seen = watch(model, tokens, torch.tensor([[3, 8], [0, -1]]))
    torch.testing.assert_close(seen.logits, expected)
    assert model.training
    assert not any(p.grad is not None for p in model.parameters())
    torch.testing.assert_close(model(tokens)[0], expected, rtol=0, atol=0)


@pytest.mark.parametrize("line", LINES)
def test_kept_rows_are_those_of_the_chosen_queries(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens = model_of(line), torch.randint(3, (2, 9))
    every = watch(model, tokens, torch.arange(9).expand(2, -1))
    monkeypatch.setattr("outlast.mixers.attention.blocks.BUDGET", 2 * 2 * 9 * 2)  # two queries
    some = watch(model, tokens, torch.tensor([[3, 8], [0, -1]]))
    for name, weights in some.weights.items():
        torch.testing.assert_close(weights[0], every.weights[name][0][:, [3, 8]])
        torch.testing.assert_close(weights[1, :, 0], every.weights[name][1, :, 0])
        assert not weights[1, :, 1].any()
        assert not every.weights[name].triu(1).any()
        if name in some.scores:
            torch.testing.assert_close(some.scores[name][0], every.scores[name][0][:, [3, 8]])


def test_streams_and_outputs_add_up() -> None:
    model, tokens = model_of("lstm > attention(nope, heads=2) > mlp"), torch.randint(3, (2, 9))
    seen = watch(model, tokens)
    names = [name for name, _ in layers(model)]
    assert names == ["1.lstm", "2.attention", "3.mlp", "4.lstm", "5.attention", "6.mlp"]
    for here, after in itertools.pairwise(names):
        torch.testing.assert_close(seen.streams[here] + seen.outputs[here], seen.streams[after])
    torch.testing.assert_close(model.head(seen.streams["head"]), seen.logits)
    assert not seen.weights


def test_a_hook_replaces_the_weights() -> None:
    model, tokens = model_of("attention(nope, heads=2)"), torch.randint(3, (2, 9))

    def itself(block: AttentionBlock) -> torch.Tensor:
        return torch.eye(block.weights.shape[-1]).expand_as(block.weights)

    with hooked({"1.attention": itself, "2.attention": itself}, model), torch.no_grad():
        alone = model(tokens)[0]
        torch.testing.assert_close(alone[:, 4:5], model(tokens[:, 4:5])[0])
    assert not torch.allclose(model(tokens)[0], alone)
