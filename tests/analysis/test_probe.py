"""A probe reads what is there, and nothing else."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from hand_built import build, task_of, untouched
from torch import Tensor, nn

import outlast
from cards import CARDS, EQUALS, VALUES, Cards
from outlast.analysis import probe as probes
from outlast.analysis.module_probe import module_probe
from outlast.analysis.probe import (
    Place,
    due_states,
    fit_probes,
    key_probe,
    state_places,
    state_probe,
    states,
    stored_keys,
)
from outlast.analysis.ridge import Moments, Probe, read_labels
from outlast.analysis.sequences import Row, blocks
from outlast.analysis.watching import watch
from outlast.errors import SpecError
from outlast.tasks import Batch, Task

LADDER, FEW = (1, 3), {"sequences": 60, "bins": 2, "fit_sequences": 150}


def accuracy(rows: list[Row], place: str, multiple: float = 3, number: int | None = None) -> float:
    layer, kind = place.rsplit(" ")
    (row,) = (
        row
        for row in rows
        if (row["layer"], row["place"], row["multiple"], row["bin"])
        == (layer, kind, multiple, number)
    )
    return float(row["accuracy"] or 0)


def test_probe_is_the_ridge_regression_that_solves_the_whole_at_once() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(90, 5, generator=generator) * torch.tensor([1, 5, 0.1, 2, 1]) + 3
    labels = torch.randint(3, (90,), generator=generator)
    moments = Moments(5, 3, features.device)
    for some, of_some in zip(features.split(40), labels.split(40), strict=True):
        moments.add(some, of_some[None])
    (fitted,) = moments.fit(ridge=0.1)

    x, y = features.double(), torch.nn.functional.one_hot(labels).double()
    penalty = 0.1 * x.var(0, correction=0).mean() * len(x)
    centred = torch.cat([x - x.mean(0), penalty.sqrt() * torch.eye(5)])
    wanted = torch.linalg.lstsq(centred, torch.cat([y - y.mean(0), torch.zeros(5, 3)])).solution
    torch.testing.assert_close(fitted.weights, wanted)
    torch.testing.assert_close(fitted.bias, y.mean(0) - x.mean(0) @ wanted)
    whole = Probe.fit(features.view(9, 10, 5), labels.view(9, 10), ridge=0.1)
    torch.testing.assert_close(whole.weights, fitted.weights)


def test_probe_reads_nothing_from_what_is_not_a_number() -> None:
    features, labels = torch.eye(4).repeat(5, 1), torch.arange(4).repeat(5)
    features[0] = torch.nan
    probe = Probe.fit(features, labels)
    assert probe.predict(features).tolist() == [-1, 1, 2, 3, *[0, 1, 2, 3] * 4]


def test_probes_that_read_together_read_what_each_reads() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(3, 2000, 5, generator=generator)  # more than are read at once
    features[1, 7] = torch.inf
    probes = [
        Probe.fit(features[:1], torch.randint(4, (1, 2000), generator=generator)) for _ in range(3)
    ]
    together = read_labels(probes, features)
    assert together.shape == (3, 3, 2000)
    assert all(map(torch.equal, together, [probe.predict(features) for probe in probes]))
    assert together[:, 1, 7].tolist() == [-1, -1, -1]
    assert read_labels(probes, features[:0]).shape == (3, 0, 2000)


def test_probe_of_features_that_do_not_differ_reads_the_most_frequent_label() -> None:
    probe = Probe.fit(torch.ones(5, 3), torch.tensor([1, 0, 1, 1, -1]))
    assert probe.predict(torch.ones(2, 3)).tolist() == [1, 1]


def test_state_is_read_where_the_model_has_it_and_not_before() -> None:
    task = task_of()
    rows = state_probe(build(task), task, LADDER, **FEW)
    for place in ("1.lstm hidden", "2.attention stream", "head stream"):
        assert accuracy(rows, place) == 1
    assert accuracy(rows, "1.lstm stream", 3, 1) < 0.65
    assert {row["layer"] for row in rows} == {"1.lstm", "2.attention", "head"}
    for row in rows:
        if row["bin"] is None:
            assert 0.3 < row["control"] < 0.7, "a probe of shuffled labels read the state"


def test_a_short_convolution_has_no_hidden_state() -> None:
    model = outlast.model("conv > lstm > gru > attention @ 8", task_of())
    hidden = [place.layer for place in state_places(model) if place.kind == "hidden"]
    assert hidden == ["2.lstm", "3.gru"]
    assert Place("1.conv", "stream") in state_places(model)


def test_a_state_that_fades_is_read_less_the_later_it_is() -> None:
    task = task_of()
    rows = state_probe(build(task, keep=1.5), task, LADDER, **FEW)
    early, late = (accuracy(rows, "1.lstm hidden", 3, number) for number in (0, 1))
    assert early > 0.8
    assert 0.4 < late < 0.7
    assert accuracy(rows, "1.lstm hidden", 1) > accuracy(rows, "1.lstm hidden", 3) + 0.1


def test_bins_divide_the_tokens_of_a_sequence() -> None:
    task = task_of()
    rows = state_probe(build(task), task, (1,), 10, bins=5, fit_sequences=50, labels=states)
    ranges = [(row["bin"], row["first"], row["end"], row["count"]) for row in rows[:6]]
    assert ranges == [
        (None, 0, 12, 120),
        (0, 0, 3, 30),
        (1, 3, 5, 20),
        (2, 5, 8, 30),
        (3, 8, 10, 20),
        (4, 10, 12, 20),
    ]


def test_states_are_due_at_values_and_at_answers_that_are_not_recalled() -> None:
    task = task_of("interleaved")
    batch = task.sample(5, 10, torch.Generator().manual_seed(0))
    due, every = due_states(task, batch), states(task, batch)
    counted = batch.inputs < 2
    counted |= batch.inputs == task.equals
    assert torch.equal(due >= 0, counted)
    assert torch.equal(due[counted], every[counted])
    assert ((every >= 0) == (batch.inputs != task.pad)).all()


def test_keys_are_read_where_the_recurrence_carries_them() -> None:
    task, model = task_of(), build(task_of())
    rows = key_probe(model, task, LADDER, **FEW)
    assert accuracy(rows, "2.attention stream") == 1
    assert {row["count"] for row in rows if row["bin"] is None} == {60 * 5, 60 * 15}
    assert all(row["control"] < 0.2 for row in rows if row["bin"] is None)
    with torch.no_grad():
        model.sublayers()[0].mixer.weight.zero_()  # the last token is forgotten
    assert accuracy(key_probe(model, task, LADDER, **FEW), "2.attention stream") < 0.2


def test_keys_are_read_also_while_attention_is_off() -> None:
    task, model = task_of(), build(task_of())
    model.sublayers()[1].set_gate(0)
    assert accuracy(key_probe(model, task, LADDER, **FEW), "2.attention stream") == 1


def test_small_blocks_give_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = task_of(), build(task_of(), keep=1.5)
    whole = state_probe(model, task, LADDER, **FEW)
    monkeypatch.setattr(probes, "blocks", lambda batch: blocks(batch, 12 * 25))
    parts = state_probe(model, task, LADDER, **FEW)
    for one, other in zip(whole, parts, strict=True):
        assert one["accuracy"] == pytest.approx(other["accuracy"], abs=0.02)


def test_fitted_probe_reads_the_state_of_one_sequence() -> None:
    task = task_of()
    model, place = build(task), Place("1.lstm", "hidden")
    probe = fit_probes(model, task, [place], states, 100)[place]
    tokens = torch.tensor([[2, 1, 5, 0, 7, 1, task.equals, 5]])
    read = probe.predict(place.read(watch(model, tokens)))
    assert read.tolist() == [[0, 1, 1, 1, 1, 0, 0, 0]]


def test_probing_leaves_the_model_untouched() -> None:
    task, model = task_of(), build(task_of())
    with untouched(model, task):
        state_probe(model, task, (1,), 5, fit_sequences=20)
        key_probe(model, task, (1,), 5, fit_sequences=20)


# ---- models of others ----------------------------------------------------------------------------


class Latch(nn.Module):
    """An LSTM of torch, set by hand: it keeps the value of the last card, which is the state."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(Cards().vocabulary, VALUES)
        self.lstm = nn.LSTM(VALUES, VALUES, batch_first=batch_first)
        self.head, self.unused = nn.Linear(VALUES, VALUES), nn.Linear(2, 2)
        self.norms = nn.ModuleList([nn.LayerNorm(VALUES), nn.LayerNorm(VALUES)])
        with torch.no_grad():
            for parameter in (*self.embedding.parameters(), *self.lstm.parameters()):
                parameter.zero_()
            for card in range(CARDS, EQUALS):
                self.embedding.weight[card, (card - CARDS) % VALUES] = 1
            enter, forget, candidate, _ = self.lstm.weight_ih_l0.chunk(4)
            enter.fill_(40), forget.fill_(-40), candidate.copy_(5 * torch.eye(VALUES))
            self.lstm.bias_ih_l0.copy_(torch.tensor([-20, 20, 0, 20]).repeat_interleave(VALUES))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x if self.lstm.batch_first else x.transpose(0, 1)
        hidden, _ = self.lstm(x)
        hidden = hidden if self.lstm.batch_first else hidden.transpose(0, 1)
        return self.head(self.norms[1](self.norms[0](hidden)))


def read_from(rows: list[Row], module: str, multiple: float = 2) -> Row:
    wanted = {"layer": module, "place": "output", "multiple": multiple, "bin": None}
    (row,) = [row for row in rows if wanted.items() <= row.items()]
    return row


@pytest.mark.parametrize("batch_first", [True, False])
def test_state_is_read_from_the_module_that_holds_it_and_not_from_another(
    batch_first: bool,
) -> None:
    model = Latch(batch_first).train()
    weights, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    rows = module_probe(model, Cards(), ["embedding", "lstm", "norms.*"], (1, 2), **FEW)
    assert {row["layer"] for row in rows} == {"embedding", "lstm", "norms.0", "norms.1"}
    for module in ("lstm", "norms.0", "norms.1"):
        assert read_from(rows, module)["accuracy"] == 1
        assert read_from(rows, module)["control"] < 0.5
    assert read_from(rows, "embedding")["accuracy"] < 0.5  # it has the value no more at `=`
    assert read_from(rows, "lstm")["count"] == FEW["sequences"]
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


def test_labels_that_are_shuffled_are_not_read_from_a_module() -> None:
    def shuffled(task: Task, batch: Batch) -> Tensor:
        table = due_states(task, batch)
        due, generator = table >= 0, torch.Generator().manual_seed(0)
        table[due] = table[due][torch.randperm(int(due.sum()), generator=generator)]
        return table

    rows = module_probe(Latch(), Cards(), ["lstm"], (1, 2), labels=shuffled, **FEW)
    assert all(read_from(rows, "lstm", multiple)["accuracy"] < 0.5 for multiple in (1, 2))


def test_module_of_someone_else_holds_what_ours_holds() -> None:
    """The probe of a model of ours by hooks, and as `state_probe` reads it."""
    task = task_of()
    model = build(task, keep=1.5)
    name = next(name for name, module in model.named_modules() if module is model.norm)
    hooked = module_probe(model, task, [name], LADDER, **FEW)
    ours = [row for row in state_probe(model, task, LADDER, **FEW) if row["layer"] == "head"]
    for one, other in zip(hooked, ours, strict=True):
        assert one == other | {"layer": name, "place": "output"}


def test_modules_that_cannot_be_probed_are_named() -> None:
    model = Latch()
    for modules, words in (
        (["gru"], "modules=gru: expected names or patterns of modules of the model"),
        ([], "modules=: expected names"),
        ([model.lstm], r"modules=\[LSTM.*: expected names"),
        (["unused"], "modules=unused: expected modules that run when the model reads tokens"),
    ):
        with pytest.raises(SpecError, match=words):
            module_probe(model, Cards(), modules, (1,), **FEW)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"model=.*len.*: expected a torch.nn.Module"):
        module_probe(len, Cards(), ["lstm"])  # type: ignore[arg-type]
    words = r"modules=1: expected modules that put out \(150, 7, features\).*; got \(150, 28\)$"
    with pytest.raises(SpecError, match=words):
        module_probe(nn.Sequential(model.embedding, nn.Flatten()), Cards(), ["1"], (1,), **FEW)
    assert not any(module._forward_hooks for module in model.modules())


def test_what_cannot_be_probed_is_named() -> None:
    recall = outlast.task("recall(keys=6, length=3)")
    with pytest.raises(SpecError, match=r"^recall.* has no running state: .* such as parity or"):
        state_probe(outlast.model("lstm @ 8", recall), recall, (1,), 4, fit_sequences=4)
    parity = outlast.task("parity(length=3)")
    model = outlast.model("attention @ 8", parity)
    with pytest.raises(SpecError, match=r"^parity.* stores nothing under a key: .* such as recall"):
        key_probe(model, parity, (1,), 4, fit_sequences=4)
    with pytest.raises(SpecError, match=r"^parity.* has none of these labels: expected labels of"):
        state_probe(model, parity, (1,), 4, fit_sequences=4, labels=partial(stored_keys))
    with pytest.raises(SpecError, match="model=lstm @ 8: expected a model with attention"):
        key_probe(outlast.model("lstm @ 8", recall), recall)
    for bins in (0, 10**12):
        with pytest.raises(SpecError, match=f"bins={bins}: expected a whole number from 1 to"):
            state_probe(build(task_of()), task_of(), bins=bins)
    labels: Any = 3
    with pytest.raises(
        SpecError, match=r"labels=3 .*: expected a function of the task and a batch"
    ):
        module_probe(build(task_of()), task_of(), ["*"], labels=labels)
