"""A head whose queries and keys are known to match by identity, or by place, is seen to do so."""

import copy
import json
from functools import partial

import pytest
import torch

import outlast
from cards import KEYS, Cards, solved_by_hand
from outlast.analysis.covariance import contrastive_covariance
from outlast.analysis.pairs import contrast, shuffled
from outlast.analysis.sequences import NothingToSeeError, Row, blocks
from outlast.errors import SpecError
from outlast.models.model import Model
from outlast.tasks import Task
from outlast.tasks.composite import Composite


def pick(rows: list[Row], **columns: object) -> Row:
    (row,) = [row for row in rows if all(row[name] == value for name, value in columns.items())]
    return row


@torch.no_grad()
def looks_at_late_ones(task: Task) -> Model:
    """Learned positions: keys hold how late they stand, and every question asks for late ones."""
    model = outlast.model("attention(learned(ceiling=32), heads=1) @ 8, norm=rms", task)
    attention = model.sublayers()[0].mixer
    for parameter in (model.embedding.weight, *attention.parameters()):
        parameter.zero_()
    model.embedding.weight[:, 0] = 1  # all tokens are alike
    (places,) = attention.scheme.parameters()
    places[:, 1] = torch.arange(32) / 32
    q, k, _ = attention.qkv.weight.chunk(3)
    q[0, 0], k[0, 1] = 1, 1
    return model


@torch.no_grad()
def looks_at_like_tokens(task: Task) -> Model:
    """Queries and keys are the embeddings, which are random: a token looks for its like."""
    width = 24
    model = outlast.model(f"attention(nope, heads=1) @ {width}, norm=rms", task)
    embeddings = torch.randn(
        model.embedding.weight.shape, generator=torch.Generator().manual_seed(0)
    )
    model.embedding.weight.copy_(embeddings)
    q, k, _ = model.sublayers()[0].mixer.qkv.weight.chunk(3)
    for weight in (q, k):
        weight.copy_(torch.eye(width))
    return model


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return contrastive_covariance(solved_by_hand(), Cards(), (2,), 512)


def test_a_head_that_matches_keys_has_a_subspace_of_identity(rows: list[Row]) -> None:
    identity = pick(rows, head=0, feature="identity")
    assert identity["rank"] in (KEYS - 1, KEYS)  # one direction is common to all keys
    assert identity["identity_share"] > 0.9
    assert identity["variance_share"] > 0.9
    assert pick(rows, head=0, feature="logit")["identity_margin"] > 10


def test_a_head_that_matches_keys_does_not_match_places(rows: list[Row]) -> None:
    logit = pick(rows, head=0, feature="logit")
    assert abs(logit["position_margin"]) < 1e-6
    assert abs(pick(rows, head=0, feature="bias")["variance_share"]) < 1e-6


def test_a_head_without_queries_and_keys_has_nothing_to_show(rows: list[Row]) -> None:
    identity = pick(rows, head=1, feature="identity")
    assert identity["rank"] == identity["singular_1"] == 0
    assert identity["variance_share"] is identity["identity_share"] is None


def test_the_bias_of_a_scheme_is_what_carries_place() -> None:
    model = solved_by_hand("lstm | attention(alibi, heads=2)")
    rows = contrastive_covariance(model, Cards(), (2,), 256)
    identity, bias = (pick(rows, head=0, feature=name) for name in ("identity", "bias"))
    logit = pick(rows, head=0, feature="logit")
    assert logit["position_margin"] > 0.1
    assert bias["position_margin"] == pytest.approx(logit["position_margin"], abs=1e-6)
    assert abs(bias["identity_share"]) < 0.1 < 0.8 < identity["identity_share"]
    alone = pick(rows, head=1, feature="bias")
    assert alone["variance_share"] == pytest.approx(1)


@pytest.mark.parametrize("sequences", [64, 128, 512])
def test_a_head_that_matches_keys_alone_has_no_subspace_of_position(sequences: int) -> None:
    rows = contrastive_covariance(solved_by_hand(), Cards(), (2,), sequences)
    position = pick(rows, head=0, feature="position")
    assert position["rank"] == 0
    assert position["singular_1"] < position["singular_bar"]
    assert position["variance_share"] == position["position_margin"] == 0
    identity = pick(rows, head=0, feature="identity")
    assert identity["rank"] == KEYS - 1
    assert identity["variance_share"] > 0.95


def test_questions_that_share_their_keys_are_no_sign_of_position() -> None:
    """What is by chance in the keys of a sequence is the same at all of its eight questions."""
    task = outlast.task("recall(keys=64, values=4, queries=8, length=8)")
    rows = contrastive_covariance(looks_at_like_tokens(task), task, (1,), 128)
    assert pick(rows, token="key", feature="position")["rank"] == 0
    identity = pick(rows, token="key", feature="identity")
    assert identity["rank"] > 15
    assert identity["variance_share"] > 0.9


@pytest.mark.parametrize("sequences", [64, 128, 512])
def test_place_in_queries_and_keys_is_a_subspace_of_position(sequences: int) -> None:
    task = outlast.task("recall(keys=16, values=4, queries=2, length=8)")
    rows = contrastive_covariance(looks_at_late_ones(task), task, (1,), sequences)
    for token in ("value", "key"):
        position = pick(rows, token=token, feature="position")
        assert position["rank"] == 1
        assert position["variance_share"] == pytest.approx(1, abs=1e-5)
        logit = pick(rows, token=token, feature="logit")
        assert logit["position_margin"] > 0.1
        assert abs(logit["identity_margin"]) < 0.25 * logit["position_margin"]
        identity = pick(rows, token=token, feature="identity")
        assert identity["rank"] == identity["variance_share"] == 0


def test_random_draws_are_the_same_each_time_and_touch_no_global_state() -> None:
    model, before = solved_by_hand(), torch.get_rng_state()
    first, second = (contrastive_covariance(model, Cards(), (1,), 16) for _ in range(2))
    assert first == second
    assert torch.equal(before, torch.get_rng_state())


def test_all_questions_of_a_sequence_are_shuffled_alike() -> None:
    """Tokens 1 to 4 hold an item each. The first question is for token 2, the second for 4."""
    weights = torch.tensor([[[0, -1, 3, -1, -1, 0], [0, -1, -1, -1, 3, 0], [0, -1, 0, 1, 0, 0]]])
    order = torch.tensor([[5, 3, 1, 0, 4, 2]])
    expected = [[0, 3, -1, -1, -1, 0], [0, -1, 3, -1, -1, 0], [0, 1, 0, -1, 0, 0]]
    assert shuffled(weights, order).tolist() == [expected]


@pytest.mark.parametrize(
    "line", ["recall(keys=16, length=5)", "composite(keys=16, length=5, layout=interleaved)"]
)
def test_pairs_that_match_are_those_of_the_item_that_is_asked_for(line: str) -> None:
    task: Task = outlast.task(line)
    batch = task.sample(5, 16, torch.Generator().manual_seed(0))
    questions, contrasts = contrast(task, batch)
    truth = task.truths(batch.inputs)
    for row, place in [(r, int(q)) for r in range(16) for q in questions[r] if q >= 0]:
        column = questions[row].tolist().index(place)
        source = int(truth.source[row, place])
        for kind, expected in (("value", source), ("key", source - 1)):
            weights = contrasts[kind].weights["identity"][row, column]
            candidates = contrasts[kind].candidates[row, column].nonzero().flatten().tolist()
            assert expected in candidates
            assert all(
                (batch.inputs[row, c] < task.classes) == (kind == "value") for c in candidates
            )
            if len(candidates) > 1:
                assert weights.argmax() == expected
                assert weights.sum().abs() < 1e-6
            else:
                assert not weights.any()


@pytest.mark.parametrize("more", ["keys=9", "keys=3, key_tokens=2", "keys=9, layout=chained"])
def test_newest_value_of_a_key_is_the_one_that_matches(more: str) -> None:
    task = outlast.task(f"composite(length=6, repeat=latest, {more})")
    assert isinstance(task, Composite)
    batch = task.sample(6, 64, torch.Generator().manual_seed(0))
    questions, contrasts = contrast(task, batch)
    seen = set()
    for row, tokens in enumerate(batch.inputs.tolist()):
        items, width = {}, task.key_tokens + 1  # by the place of their value: the tokens of the key
        for place in range(width - 1, 6 * width, width):
            items[place] = tuple(tokens[place - width + 1 : place])
        for column, question in enumerate(questions[row].tolist()):
            asked = tuple(tokens[question - width + 2 : question + 1])
            *older, newest = (place for place, key in items.items() if key == asked)
            others = {place for place, key in items.items() if key != asked}
            for kind, before in (("value", 0), ("key", 1)):
                shift = {place - before for place in others}
                weights = contrasts[kind].weights["identity"][row, column]
                candidates = contrasts[kind].candidates[row, column].nonzero().flatten()
                assert candidates.tolist() == [place - before for place in items]
                assert set((weights < 0).nonzero().flatten().tolist()) == shift
                assert (weights > 0).nonzero().flatten().tolist() == [newest - before] * bool(shift)
                halves = contrasts[kind].weights["position"][row, column]
                assert set(halves.nonzero().flatten().tolist()) <= shift
            neighbours = {items[p] == items.get(p + width) for p in items}
            seen |= {"older"} if older else set()
            seen |= {"neighbours"} if True in neighbours else set()
    assert seen == {"older", "neighbours"}


@pytest.mark.parametrize("line", ["flipflop(length=12)", "copy(length=5)"])
def test_a_task_without_keys_has_places_alone(line: str) -> None:
    task = outlast.task(line)
    model = outlast.model("2 x attention(rope, heads=2) @ 8", task)
    rows = contrastive_covariance(model, task, (1,), 8)
    assert {row["token"] for row in rows} == {"any"}
    assert {row["feature"] for row in rows} == {"logit", "position", "bias"}
    assert len(rows) == 2 * 2 * 3


@pytest.mark.parametrize("scheme", ["tra", "stick_breaking", "cope", "xpos"])
def test_blocks_of_queries_and_of_sequences_change_nothing(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = outlast.task("composite(keys=16, length=6)")
    model = outlast.model(f"lstm > attention({scheme}, heads=2) @ 8", task, seed=0)
    whole = contrastive_covariance(model, task, (1,), 12)
    monkeypatch.setattr("outlast.mixers.attention.blocks.BUDGET", 100)
    monkeypatch.setattr("outlast.analysis.pairs.blocks", partial(blocks, tokens=50))
    parts = contrastive_covariance(model, task, (1,), 12)
    assert len(whole) == len(parts)
    for one, other in zip(whole, parts, strict=True):
        for name in ("layer", "head", "feature", "token", "rank", "identity_questions"):
            assert one[name] == other[name]
        assert other["identity_margin"] == pytest.approx(one["identity_margin"], abs=1e-5)
    assert ("bias" in {row["feature"] for row in whole}) == (scheme in ("cope", "xpos"))


def test_scores_that_overflow_are_refused_or_none_in_the_table() -> None:
    model = solved_by_hand()
    qkv = model.sublayers()[1].mixer.qkv.weight
    with torch.no_grad():
        qkv.mul_(1e20)
    rows = contrastive_covariance(model, Cards(), (1,), 8)
    assert None in {row["identity_margin"] for row in rows}
    json.dumps(rows, allow_nan=False)
    with torch.no_grad():
        qkv.fill_(1e38)
    with pytest.raises(NothingToSeeError, match="queries or keys of the model are not finite"):
        contrastive_covariance(model, Cards(), (1,), 8)


def test_the_model_is_left_as_it_was() -> None:
    model = solved_by_hand().train()
    before = copy.deepcopy(model.state_dict())
    contrastive_covariance(model, Cards(), (1,), 4)
    assert model.training
    assert all(vars(m).get("hook") is None for m in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_has_nothing_to_see_is_refused() -> None:
    parity = outlast.task("parity")
    with pytest.raises(NothingToSeeError, match="such as recall"):
        contrastive_covariance(outlast.model("attention(nope, heads=1) @ 8", parity), parity)
    for line in ("lstm @ 8", "attention(position_only, heads=1) @ 8"):
        with pytest.raises(NothingToSeeError, match="expected a model with an attention layer"):
            contrastive_covariance(outlast.model(line, Cards()), Cards())
    with pytest.raises(SpecError, match="sequences=1"):
        contrastive_covariance(solved_by_hand(), Cards(), sequences=1)
