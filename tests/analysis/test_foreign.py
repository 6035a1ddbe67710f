"""The attention of other people's modules is what these modules compute."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import outlast
from outlast.analysis.ablation import pathway_ablation
from outlast.analysis.anatomy import anatomy
from outlast.analysis.calibration import calibrate
from outlast.analysis.covariance import contrastive_covariance
from outlast.analysis.examples import anatomy_with_examples
from outlast.analysis.foreign import watch_foreign
from outlast.analysis.gradients import gradient_attribution
from outlast.analysis.probe import key_probe, state_probe
from outlast.analysis.sharpness import recalled, sharpness
from outlast.analysis.token_filter import token_filter
from outlast.analysis.watching import watch
from outlast.errors import SpecError
from outlast.streams import stream

QUERIES = torch.tensor([[3, 6], [0, -1]])


class Stream(nn.Module):
    def __init__(self, batch_first: bool = True, **asked: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        self.head = nn.Linear(8, 5)
        self.batch_first, self.asked = batch_first, asked
        self.seen: Tensor | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x if self.batch_first else x.transpose(0, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        y, self.seen = self.attention(x, x, x, attn_mask=mask, **self.asked)
        return self.head(y if self.batch_first else y.transpose(0, 1))


@pytest.mark.parametrize(
    "model",
    [
        Stream(),
        Stream(batch_first=False, need_weights=False),
        Stream(need_weights=True, average_attn_weights=False),
    ],
)
def test_rows_of_multihead_attention(model: Stream) -> None:
    tokens = torch.randint(5, (2, 7))
    model.train()
    expected = model(tokens).detach()
    given = model.seen
    seen = watch_foreign(model, tokens, QUERIES)
    torch.testing.assert_close(seen.logits, expected)
    assert (model.seen is None) == (given is None)
    if given is not None:
        torch.testing.assert_close(model.seen, given)
    x = model.embedding(tokens)
    q, k, _ = (x @ model.attention.in_proj_weight.T).unflatten(-1, (3, 2, 4)).unbind(2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 2
    scores = scores.masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), -torch.inf)
    weights = scores.softmax(-1)
    torch.testing.assert_close(seen.weights["attention"][0], weights[0][:, [3, 6]])
    torch.testing.assert_close(seen.weights["attention"][1, :, 0], weights[1][:, 0])
    assert not seen.weights["attention"][1, :, 1].any()
    assert model.training
    assert not model.attention._forward_hooks
    assert not model.attention._forward_pre_hooks


def test_layers_of_torch_that_have_a_fused_path_are_seen() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.Sequential(nn.Embedding(5, 8), nn.TransformerEncoder(layer, 2), nn.Linear(8, 5))
    tokens = torch.randint(5, (2, 7))
    with torch.no_grad():
        expected = model.eval()(tokens)
    seen = watch_foreign(model, tokens, QUERIES)
    torch.testing.assert_close(seen.logits, expected)
    assert list(seen.weights) == ["1.layers.0.self_attn", "1.layers.1.self_attn"]
    for rows in seen.weights.values():
        torch.testing.assert_close(rows[0].sum(-1), torch.ones(2, 2))


def test_what_is_no_foreign_model_is_refused() -> None:
    tokens = torch.zeros(2, 7, dtype=torch.long)
    ours = outlast.model("attention(nope, heads=2) @ 8", outlast.task("parity"))
    with pytest.raises(SpecError, match=r"model=.*: expected no model of Outlast: `watch` it"):
        watch_foreign(ours, tokens, QUERIES)


@pytest.mark.parametrize(
    ("queries", "words"),
    [
        (torch.tensor([[3, 7], [0, -1]]), "queries=7: expected numbers of tokens, below 7"),
        (torch.tensor([[3, 6]]), r"queries=\(1, 2\).*: expected a row for each of 2 rows"),
        (torch.tensor([3, 6]), r"queries=\(2,\).*: expected a tensor of two axes"),
    ],
    ids=str,
)
def test_queries_that_are_none_are_refused(queries: Tensor, words: str) -> None:
    tokens, ours = torch.zeros(2, 7, dtype=torch.long), outlast.model("attention @ 8", "parity")
    for look, model in ((watch_foreign, Stream()), (watch, ours)):
        with pytest.raises(SpecError, match=words):
            look(model, tokens, queries)


class Unknown(nn.Module):
    """Attention that cannot be told from other modules."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        y, weights = self.inside(x, x, x, attn_mask=mask, average_attn_weights=False)
        return y, weights


class Hidden(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding, self.mixer = nn.Embedding(vocabulary, 8), Unknown()
        self.head = nn.Linear(8, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.head(x + self.mixer(x)[0])


def test_attention_can_be_named() -> None:
    task = outlast.task("composite(modulus=2, keys=12, queries=2, length=3)")
    model = Hidden(task.vocabulary)
    found, named = (sharpness(model, task, (1,), 6, names) for names in (None, ["mixer"]))
    assert {row["layer"] for row in found} == {"mixer.inside"}
    assert [row | {"layer": "mixer.inside"} for row in named] == found
    rows = pathway_ablation(model, task, (1,), 6, attention=["mi?er"])
    assert {row["layer"] for row in rows if row["ablation"] == "layer off"} == {"mixer"}
    tokens = torch.zeros(2, 7, dtype=torch.long)
    assert list(watch_foreign(model, tokens, QUERIES, ["mixer"]).weights) == ["mixer"]
    with pytest.raises(SpecError, match=r"attention=\*.gru: expected names or patterns of modules"):
        sharpness(model, task, attention=["*.gru"])


@pytest.mark.parametrize("analysis", [sharpness, pathway_ablation])
def test_attention_of_a_model_of_ours_needs_no_name(analysis: Any) -> None:
    task = outlast.task("composite(modulus=2, keys=12, queries=2, length=3)")
    model = outlast.model("lstm > attention(nope, heads=2) @ 8", task)
    with pytest.raises(SpecError, match=r"attention=.*: expected None: .* a model of Outlast"):
        analysis(model, task, attention=["*"])


def watched(model: nn.Module, *_: Any) -> None:
    watch_foreign(model, torch.zeros(2, 7, dtype=torch.long), QUERIES)


@pytest.mark.parametrize("analysis", [sharpness, pathway_ablation, watched])
def test_module_without_attention_is_told_what_is_accepted(analysis: Any) -> None:
    accepted = "expected (a model of Outlast, or )?a torch.nn.Module whose attention can be found$"
    advice = re.escape('name its modules, as in attention=["*.attn"]')
    task = outlast.task("composite(modulus=2, keys=12, queries=2, length=3)")
    with pytest.raises(SpecError, match=f"^model=Linear: no attention found: .*; {advice}$"):
        analysis(nn.Linear(2, 2), task)
    with pytest.raises(SpecError, match=rf"^model=.*len.*: {accepted}"):
        analysis(len, task)


class Hybrid(nn.Module):
    """An LSTM and attention, of plain torch."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.lstm(self.embedding(tokens))[0]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(x + self.attention(x, x, x, attn_mask=mask)[0])


OF_MODELS = [
    state_probe, key_probe, anatomy, anatomy_with_examples, contrastive_covariance, token_filter,
]  # fmt: skip
OF_MODULES = [sharpness, pathway_ablation]


@pytest.mark.parametrize("analysis", [*OF_MODELS, gradient_attribution, calibrate])
def test_analysis_of_the_layers_of_a_foreign_module_is_refused_in_words(analysis: Any) -> None:
    task = outlast.task("composite(modulus=2, keys=12, queries=2, length=3)")
    words = "model=Hybrid: expected a model of Outlast; for other modules there are sharpness, "
    with pytest.raises(SpecError, match=f"^{words}.* and pathway_ablation$"):
        analysis(Hybrid(task.vocabulary), task)


@pytest.mark.parametrize("analysis", [*OF_MODELS, *OF_MODULES, gradient_attribution, calibrate])
def test_line_in_the_place_of_a_task_is_refused_in_words(analysis: Any) -> None:
    model = outlast.model("lstm > attention(nope, heads=2) @ 8", "parity")
    words = r"^task='parity': expected a task, such as outlast.task\('parity'\)$"
    with pytest.raises(SpecError, match=words):
        analysis(model, "parity")


@pytest.mark.parametrize("analysis", [*OF_MODELS, *OF_MODULES])
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ladder": 3}, r"ladder=3 \(int\): expected a list of multiples, such as \(1, 3, 10\)"),
        ({"ladder": (1, -1)}, "ladder=-1: expected multiples of the training length"),
        ({"ladder": ()}, "ladder=: expected at least one multiple"),
        ({"ladder": (1, 2, 1.0)}, "ladder=1 2 1: expected each multiple once"),
        ({"sequences": 0}, r"sequences=0: expected a whole number from 1 to"),
    ],
    ids=str,
)
def test_lengths_and_numbers_that_are_none_are_named(
    analysis: Any, changed: dict[str, Any], words: str
) -> None:
    task = outlast.task("composite(modulus=2, keys=12, queries=2, length=3)")
    model = outlast.model("lstm > attention(nope, heads=2) @ 8", task)
    with pytest.raises(SpecError, match=f"^{words}"):
        analysis(model, task, **changed)


def test_sharpness_of_a_foreign_module(monkeypatch: pytest.MonkeyPatch) -> None:
    task = outlast.task("composite(modulus=2, keys=12, queries=2, length=3)")
    model = Hybrid(task.vocabulary)
    rows = sharpness(model, task, (1, 2), 6)
    assert [(row["multiple"], row["layer"], row["head"]) for row in rows] == [
        (multiple, "attention", head) for multiple in (1, 2) for head in (0, 1)
    ]
    batch = task.test_batch(3, 6, stream(torch.device("cpu"), "evaluate", 3))
    source = recalled(task, batch)
    places = torch.arange(source.shape[1]).expand_as(source)
    weights = watch_foreign(model, batch.inputs, places).weights["attention"]
    number, token = (source >= 0).nonzero(as_tuple=True)
    expected = weights[number, :, token, source[number, token]].double().mean(0)
    assert [row["weight"] for row in rows[:2]] == pytest.approx(expected.tolist())
    assert {row["count"] for row in rows} == {len(number)}
    assert {row["margin"] for row in rows} == {row["law"] for row in rows} == {None}
    monkeypatch.setattr("outlast.analysis.sharpness.FOREIGN_WEIGHTS", 1)
    for row, whole in zip(sharpness(model, task, (1, 2), 6), rows, strict=True):
        assert row["weight"] == pytest.approx(whole["weight"])
