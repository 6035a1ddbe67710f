"""Ablations of a model whose parts are known: each part that matters costs what it carries."""

import copy

import pytest
import torch
from torch import Tensor, nn

import outlast
from cards import KEY, LATCH, VALUES, Cards, solved_by_hand
from outlast.analysis.ablation import pathway_ablation
from outlast.analysis.sequences import Row
from outlast.errors import SpecError
from outlast.models.model import Model

SEQUENCES = 64


def pick(rows: list[Row], ablation: str, part: str, **columns: object) -> Row:
    wanted = {"ablation": ablation, "part": part, **columns}
    (row,) = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return row


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return pathway_ablation(solved_by_hand(), Cards(), (1, 2), SEQUENCES, window=3)


def test_whole_is_what_evaluate_gives(rows: list[Row]) -> None:
    expected = outlast.evaluate(solved_by_hand(), Cards(), (1, 2), SEQUENCES)
    for result in expected:
        at = {"length": result["length"], "multiple": result["multiple"]}
        for part, share in result["exact"].items():
            row = pick(rows, "whole", part, **at)
            assert row["exact"] == share == 1
            assert row["answers"] == result["answers"].get(part)


@pytest.mark.parametrize(
    ("ablation", "columns", "lost"),
    [
        ("attention off", {}, "recall"),
        ("recurrence off", {}, "state"),
        ("layer off", {"layer": "1.lstm"}, "state"),
        ("layer off", {"layer": "2.attention"}, "recall"),
        ("head off", {"head": 0}, "recall"),
        ("uniform", {}, "recall"),
        ("window", {}, "recall"),
        ("head off", {"head": 1}, None),
        ("hard", {}, None),
    ],
)
def test_what_is_off_costs_what_it_carries(
    rows: list[Row], ablation: str, columns: dict[str, object], lost: str | None
) -> None:
    for part in ("state", "recall"):
        row = pick(rows, ablation, part, length=8, **columns)
        if part == lost:
            assert row["answers"] < 0.75
            assert row["unchanged"] < 0.75
        else:
            assert row["answers"] == row["exact"] == row["unchanged"] == 1


def test_mlps_are_layers_that_can_be_off_one_by_one() -> None:
    model = solved_by_hand("(lstm | attention(nope, heads=2)) > mlp > mlp")
    idle, carrier = (sublayer.mixer for sublayer in model.sublayers()[2:])
    with torch.no_grad():  # the answer to `state` comes through the last MLP alone
        idle.down.bias.zero_(), carrier.down.bias.zero_()
        for value in range(VALUES):
            carrier.up.weight[value, LATCH + value] = carrier.down.weight[KEY + value, value] = 1
            model.head.weight[value, LATCH + value], model.head.weight[value, KEY + value] = 0, 100
    rows = pathway_ablation(model, Cards(), (1,), SEQUENCES)
    of_layers = [row["layer"] for row in rows if row["ablation"] == "layer off"]
    assert list(dict.fromkeys(of_layers)) == ["1.lstm", "2.attention", "3.mlp", "4.mlp"]
    assert pick(rows, "whole", "joint")["exact"] == 1
    assert pick(rows, "layer off", "joint", layer="3.mlp")["exact"] == 1
    assert pick(rows, "layer off", "state", layer="4.mlp")["answers"] < 0.75
    assert pick(rows, "layer off", "recall", layer="4.mlp")["answers"] == 1


def test_shuffled_items_change_what_depends_on_their_order_alone(rows: list[Row]) -> None:
    recall = pick(rows, "items shuffled", "recall", length=8)
    assert recall["exact"] == recall["unchanged"] == 1
    state = pick(rows, "items shuffled", "state", length=8)
    assert state["exact"] == 1
    assert state["unchanged"] < 0.75


def test_attention_that_adds_nothing_can_be_spared() -> None:
    model = solved_by_hand()
    with torch.no_grad():
        model.sublayers()[1].mixer.out.weight.zero_()
    rows = pathway_ablation(model, Cards(), (1,), SEQUENCES)
    for part in ("state", "recall"):
        assert pick(rows, "attention off", part)["unchanged"] == 1
    assert pick(rows, "whole", "state")["answers"] == 1
    off = pick(rows, "recurrence off", "state")["answers"]
    assert abs(off - 1 / VALUES) < 0.2


def test_running_sums_of_shuffled_items_are_not_counted() -> None:
    task = outlast.task("composite(keys=16, length=4, layout=chained)")
    model = outlast.model("lstm > attention(nope, heads=1) @ 8", task)
    rows = pathway_ablation(model, task, (1,), 4)
    parts = [row["part"] for row in rows if row["ablation"] == "items shuffled"]
    assert parts == ["joint", "state", "recall"]
    assert pick(rows, "whole", "running")["unchanged"] == 1


@pytest.mark.parametrize("scheme", ["rope", "alibi", "learned(ceiling=64)"])
def test_drawn_positions_change_a_scheme_that_uses_them(scheme: str) -> None:
    task = outlast.task("modsum(length=20)")
    model = outlast.model(f"attention({scheme}, heads=1) @ 8", task, seed=0)
    with torch.no_grad():
        model.sublayers()[0].mixer.out.weight.mul_(100)
    rows = pathway_ablation(model, task, (1,), SEQUENCES)
    assert pick(rows, "positions drawn", "running")["unchanged"] < 1


def test_what_does_not_apply_is_left_out() -> None:
    task = outlast.task("flipflop(length=8)")
    model = outlast.model("lstm > attention(learned(ceiling=8), heads=1) @ 8", task)
    model.sublayers()[0].set_gate(0)
    names = {row["ablation"] for row in pathway_ablation(model, task, (1,), 4)}
    assert names == {"whole", "attention off", "layer off", "head off", "window", "hard", "uniform"}
    alone = outlast.model("lstm @ 8", task)
    rows = pathway_ablation(alone, task, (1,), 4)
    assert {row["ablation"] for row in rows} == {"whole", "recurrence off", "layer off"}


def test_a_short_convolution_is_not_closed_with_the_recurrence() -> None:
    task = outlast.task("parity(length=4)")
    rows = pathway_ablation(outlast.model("lstm > conv @ 8", task, seed=0), task, (1,), SEQUENCES)
    assert {row["layer"] for row in rows if row["ablation"] == "layer off"} == {"1.lstm", "2.conv"}
    without = [
        [row["unchanged"] for row in rows if (row["ablation"], row["layer"]) == case]
        for case in (("recurrence off", None), ("layer off", "1.lstm"))
    ]
    assert without[0] == without[1] != []
    rows = pathway_ablation(outlast.model("conv @ 8", task), task, (1,), 4)
    assert "recurrence off" not in {row["ablation"] for row in rows}


def test_the_model_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = solved_by_hand().train()
    model.sublayers()[0].set_gate(0.5)
    before, weights = repr(_state_of(model)), copy.deepcopy(model.state_dict())
    random_state = torch.get_rng_state()
    pathway_ablation(model, Cards(), (1,), 4)
    monkeypatch.setattr(Model, "forward", _fails)
    with pytest.raises(RuntimeError, match="on purpose"):
        pathway_ablation(model, Cards(), (1,), 4)
    assert repr(_state_of(model)) == before
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name])
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(parameter.grad is None for parameter in model.parameters())


def _fails(*_: object, **__: object) -> None:
    raise RuntimeError("on purpose")


def _state_of(model: Model) -> list[object]:
    gates = [(float(s.gate), s.gate_mode) for s in model.sublayers()]
    return [
        gates,
        [m.training for m in model.modules()],
        [vars(m).get("hook") for m in model.modules()],
    ]


class Foreign(nn.Module):
    """A stream with attention of torch's own; its head reads attention alone, or all."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(tokens)))


def test_attention_of_someone_elses_model_is_taken_out_and_put_back() -> None:
    task = outlast.task("modsum(length=6)")
    torch.manual_seed(0)
    model = Foreign(task.vocabulary)
    tokens = torch.randint(task.modulus, (2, 6))
    before = model.eval()(tokens)
    rows = pathway_ablation(model.train(), task, (1,), 16)
    names = {row["ablation"] for row in rows}
    assert names == {"whole", "attention off", "layer off", "head off", "items shuffled"}
    assert pick(rows, "items shuffled", "state")["exact"] is not None
    assert pick(rows, "attention off", "running")["unchanged"] < 1
    expected = outlast.evaluate(model, task, (1,), 16)[0]["answers"]["running"]
    assert pick(rows, "whole", "running")["answers"] == expected
    assert model.training
    assert torch.equal(model.eval()(tokens), before)
    assert "forward" not in vars(model.layer.self_attn)
    with torch.no_grad():
        model.layer.self_attn.out_proj.weight.zero_()
        model.layer.self_attn.out_proj.bias.zero_()
    assert pick(pathway_ablation(model, task, (1,), 16), "attention off", "state")["unchanged"] == 1


class ForeignHybrid(Foreign):
    """An LSTM under the attention, around which a residual stream flows."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__(vocabulary)
        self.lstm = nn.LSTM(8, 8, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.lstm(x)[0]
        return self.head(x + self.layer.self_attn(x, x, x)[0])


def test_parts_of_someone_elses_model_are_taken_out_one_by_one() -> None:
    task = outlast.task("modsum(length=6)")
    torch.manual_seed(0)
    model = ForeignHybrid(task.vocabulary).eval()
    with torch.no_grad():  # head 1 adds nothing
        model.layer.self_attn.out_proj.weight[:, 4:] = 0
        model.layer.self_attn.in_proj_weight.mul_(5)
    weights = copy.deepcopy(model.state_dict())
    rows = pathway_ablation(model, task, (1,), SEQUENCES)
    layers = {row["layer"] for row in rows if row["ablation"] == "layer off"}
    assert layers == {"layer.self_attn", "lstm"}
    both = [
        pick(rows, "recurrence off", "running"),
        pick(rows, "layer off", "running", layer="lstm"),
    ]
    assert both[0]["unchanged"] == both[1]["unchanged"] < 1
    assert pick(rows, "head off", "running", head=0)["unchanged"] < 1
    assert pick(rows, "head off", "running", head=1)["unchanged"] == 1
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert "forward" not in vars(model.lstm)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"window": 0}, "window"), ({"sequences": 0}, "sequences"), ({"task": "parity"}, "task")],
)
def test_bad_arguments_are_named(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(SpecError, match=f"{field}="):
        pathway_ablation(solved_by_hand(), **{"task": Cards(), "ladder": (1,), **arguments})
