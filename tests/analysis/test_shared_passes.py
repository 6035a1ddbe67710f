"""Passes that share what they have in common give what whole passes give."""

from functools import partial

import pytest
import torch
from hand_built import untouched
from torch import Tensor

import outlast
from outlast.analysis.interventions import Marked, Uniform, Within, closed
from outlast.analysis.probe import Place, fit_probes, states
from outlast.analysis.replay import Replay
from outlast.analysis.watching import HEAD, RowKeeper, attention_layers, hooked, layers, watch
from outlast.kernels.attention import attend
from outlast.mixers.attention.look import AttentionBlock, Change
from outlast.models.model import Model

TASK = outlast.task("composite(modulus=2, keys=12, queries=2, length=4)")
TOKENS = next(TASK.stream(batch=3)).inputs
KEPT = torch.rand(TOKENS.shape, generator=torch.Generator().manual_seed(0)) < 0.3


class WithoutHead(Change):
    """The weights of one head are 0. The ablation takes the head from the output instead."""

    def __init__(self, head: int) -> None:
        self.head = head

    def __call__(self, block: AttentionBlock) -> Tensor:
        weights = block.weights.clone()
        weights[:, self.head] = 0
        return weights

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = torch.arange(q.shape[1], device=q.device)[:, None, None]
        return attend(q, k, v).masked_fill(heads == self.head, 0)


CHANGES = {
    "head": WithoutHead(1), "window": Within(3), "keys": Marked(KEPT), "uniform": Uniform(),
}  # fmt: skip


def model_of(line: str) -> Model:
    return outlast.model(line, TASK, seed=0).eval()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_change_without_a_table_is_the_change_of_the_table(change: Change) -> None:
    model = model_of("lstm | attention(heads=2) > mlp > attention(heads=2) @ 16")

    def by_table(block: AttentionBlock) -> torch.Tensor:
        return change(block)

    results = []
    for hook in (change, by_table):
        with torch.no_grad(), hooked(dict.fromkeys(attention_layers(model), hook), model):
            results.append(model(TOKENS)[0])
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        assert not torch.allclose(results[0], model(TOKENS)[0], atol=1e-3)


@pytest.mark.parametrize(("limit", "three"), [("BUDGET", 3 * 3 * TOKENS.shape[1]), ("QUERIES", 3)])
def test_masks_of_three_queries_at_a_time_are_the_same(
    monkeypatch: pytest.MonkeyPatch, limit: str, three: int
) -> None:
    model = model_of("attention(heads=2) @ 16")
    results = []
    for number in (2**24, three):
        monkeypatch.setattr(f"outlast.analysis.interventions.{limit}", number)
        with torch.no_grad(), hooked({"1.attention": Marked(KEPT)}, model):
            results.append(model(TOKENS)[0])
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scheme", ["nope", "alibi", "tra", "nope, weights=entmax"])
def test_rows_of_late_queries_are_those_of_a_whole_table(scheme: str) -> None:
    model = model_of(f"attention({scheme}, heads=2) > mlp > attention({scheme}, heads=2) @ 16")
    last = TOKENS.shape[1] - 1
    queries = torch.tensor([[last - 2, last]] * len(TOKENS))
    late = watch(model, TOKENS, queries)
    every = watch(model, TOKENS, torch.arange(last + 1).expand(len(TOKENS), -1))
    assert RowKeeper(queries, last + 1).first == last - 2
    for name, weights in late.weights.items():
        expected = every.weights[name][:, :, [last - 2, last]]
        torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(late.logits, every.logits, rtol=1e-4, atol=1e-5)


def note(ran: list[str], name: str, *_: object) -> None:
    ran.append(name)


@pytest.mark.parametrize(
    "line",
    [
        "2 x (lstm | attention(heads=2) > mlp) @ 16",
        "lstm > attention(heads=2) > mlp @ 16, residual=normalised",
    ],
)
def test_replay_begins_at_the_first_changed_sublayer(line: str) -> None:
    model = model_of(line)
    by_name = dict(layers(model))
    with untouched(model, TASK), torch.no_grad():
        replay = Replay(model, TOKENS)
        for number, (name, sublayer) in enumerate(by_name.items()):
            with closed([sublayer]):
                expected = model(TOKENS)[0]
            ran: list[str] = []
            handles = [
                other.mixer.register_forward_hook(partial(note, ran, known))
                for known, other in by_name.items()
            ]
            with replay.until([sublayer]), closed([sublayer]):
                assert torch.equal(model(TOKENS)[0], expected), name
            for handle in handles:
                handle.remove()
            assert ran == list(by_name)[number + 1 :]
        assert torch.equal(model(TOKENS)[0], replay.logits)


@pytest.mark.parametrize("scheme", ["nope", "tra", "nope, weights=compositional"])
def test_replay_without_a_head_does_not_compute_its_attention(scheme: str) -> None:
    model = model_of(f"2 x (lstm | attention({scheme}, heads=2) > mlp) @ 16")
    by_name = dict(layers(model))
    by_name["5.attention"].set_gate(0.5)
    with untouched(model, TASK), torch.no_grad():
        replay = Replay(model, TOKENS)
        for name in attention_layers(model):
            sublayer = by_name[name]
            with hooked({name: WithoutHead(1)}, model):
                expected = model(TOKENS)[0]
            ran: list[str] = []
            handle = sublayer.mixer.register_forward_hook(partial(note, ran, name))
            with replay.until([sublayer], {sublayer: replay.without_head(sublayer, 1)}):
                logits = model(TOKENS)[0]
            handle.remove()
            assert not ran
            assert not torch.allclose(logits, replay.logits, atol=1e-4)
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("line", "place", "ran"),
    [
        ("2 x (lstm | attention(heads=2) > mlp) @ 16", Place("1.lstm", "hidden"), 1),
        ("2 x (lstm | attention(heads=2) > mlp) @ 16", Place("5.attention", "stream"), 4),
        ("lstm > attention > mlp @ 16, residual=normalised", Place("2.attention", "stream"), 2),
    ],
)
def test_probes_compute_nothing_after_their_last_place(line: str, place: Place, ran: int) -> None:
    model = model_of(line)
    fitted, names = [], list[str]()
    for places in ([place, Place(HEAD, "stream")], [place]):
        with untouched(model, TASK):
            names.clear()
            handles = [
                sublayer.mixer.register_forward_hook(partial(note, names, name))
                for name, sublayer in layers(model)
            ]
            fitted.append(fit_probes(model, TASK, places, states, 32)[place])
            for handle in handles:
                handle.remove()
    assert names == [name for name, _ in layers(model)][:ran]
    assert torch.equal(fitted[0].weights, fitted[1].weights)
