"""The cause of a wrong answer is the part that was broken by hand."""

import pytest
import torch
from hand_built import WIDTH, build, task_of, untouched

import outlast
from outlast.analysis import anatomy as anatomies
from outlast.analysis import instruments, retrieval
from outlast.analysis.anatomy import CAUSES, Anatomy, anatomy, dissect
from outlast.analysis.instruments import CheckedProbe, Instruments, needed_state
from outlast.analysis.probe import Place, fit_probes
from outlast.analysis.retrieval import Attended, Retriever, find_retriever
from outlast.analysis.ridge import Probe
from outlast.analysis.sequences import blocks, draw_rungs
from outlast.analysis.sharpness import recalled
from outlast.analysis.watching import HEAD
from outlast.errors import SpecError
from outlast.mixers.attention.look import AttentionBlock
from outlast.models.model import Model
from outlast.tasks import Task

LADDER, SEQUENCES, FIT = (1, 3), 80, 150


def shares(anatomy: Anatomy, part: str, multiple: float = 3) -> dict[str, float]:
    """The causes of one part that occur."""
    rows = [row for row in anatomy.rows if (row["part"], row["multiple"]) == (part, multiple)]
    assert [row["cause"] for row in rows] == list(CAUSES)
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert sum(row["count"] for row in rows) == SEQUENCES
    return {str(row["cause"]): row["share"] for row in rows if row["share"]}


def dissected(model: Model, task: Task) -> Anatomy:
    return dissect(model, task, LADDER, SEQUENCES, FIT)


@pytest.mark.parametrize("layout", ["separate", "chained"])
def test_a_sound_model_is_right_and_its_instruments_are_found(layout: str) -> None:
    task = task_of(layout)
    sound = dissected(build(task), task)
    assert shares(sound, "state") == shares(sound, "recall") == {"right": 1}
    assert sound.probe == Place("1.lstm", "hidden")
    assert sound.retriever is not None
    assert sound.retriever[:3] == ("2.attention", (0,), 0)
    assert sound.retriever.weight == pytest.approx(1)
    trust = {row["part"]: row["probe"] for row in sound.rows}
    assert trust == {"state": 1, "recall": 1 if layout == "chained" else None}


def test_a_weak_head_is_diluted_and_more_so_at_length() -> None:
    task = task_of()
    weak = dissected(build(task, sharpness=0.3), task)
    assert shares(weak, "state") == {"right": 1}
    near, far = (shares(weak, "recall", multiple) for multiple in LADDER)
    assert set(far) == {"right", "diluted"}
    assert near.get("diluted", 0) < 0.1 < far["diluted"]


@pytest.mark.parametrize("sharpness", [0, 0.05])
def test_a_head_that_looks_everywhere_alike_has_no_wrong_key(sharpness: float) -> None:
    task = task_of()
    even = dissected(build(task, sharpness), task)
    for multiple in LADDER:
        causes = shares(even, "recall", multiple)
        assert set(causes) == {"right", "unfocused"}
        assert causes["unfocused"] > 0.2
    tokens = task.tokens(5)
    weights = {row["part"]: row["retriever_weight"] for row in even.rows}
    assert weights == {"state": None, "recall": pytest.approx(1 / tokens, rel=0.3)}
    sharp = {row["part"]: row["retriever_weight"] for row in dissected(build(task), task).rows}
    assert sharp == {"state": None, "recall": pytest.approx(1)}


@pytest.mark.parametrize(
    ("weights", "is_focused"),
    [
        ([[0.25] * 4], False),
        ([[0.3, 0.4, 0.2, 0.1]], False),
        ([[0.2, 0.6, 0.1, 0.1]], True),  # of four keys half of all is enough
        ([[0.25] * 4, [0, 0, 1, 0]], True),  # one head suffices
        ([[1 / 16] * 16], False),
        ([[0.2, *[0.8 / 15] * 15]], True),
        ([[0.18, *[0.82 / 15] * 15]], False),
        ([[0.0] * 16], False),  # a row that keeps no key
    ],
)
def test_attention_is_focused_if_a_token_has_several_times_the_even_weight(
    weights: list[list[float]], is_focused: bool
) -> None:
    rows = torch.tensor(weights)[None, :, None]  # (batch, heads, queries, keys)
    keys = rows.shape[-1]
    source = torch.full((1, keys), -1)
    source[0, -1] = 0
    hook = Attended(source, Retriever("", tuple(range(len(weights))), 0, 1.0))
    hook(AttentionBlock(rows, None, keys - 1, None))  # type: ignore[arg-type]
    assert hook.focused[0, -1] == is_focused
    assert hook.tokens[0, -1] == rows.sum(1).argmax()


def test_the_key_of_the_right_value_is_not_the_value() -> None:
    source = torch.tensor([[-1, -1, -1, -1, 2]])
    for token, is_found in ((1, False), (2, True), (3, True), (4, False)):
        hook = Attended(source, Retriever("", (0,), 1, 1.0))
        rows = torch.zeros(1, 1, 1, 5)
        rows[..., token] = 1
        hook(AttentionBlock(rows, None, 4, None))  # type: ignore[arg-type]
        assert hook.on_source()[0, -1] == is_found, token


def test_a_head_that_looks_at_another_key_attends_to_the_wrong_one() -> None:
    task = task_of()
    elsewhere = dissected(build(task, shift=1), task)
    causes = shares(elsewhere, "recall")
    assert causes["key"] > 0.3
    assert set(causes) <= {"right", "key", "unfocused"}  # digits are 0 or 1: half is luck
    assert causes.get("unfocused", 0) < 0.1, "only where the key it looks for was never stored"


@pytest.mark.parametrize("layout", ["separate", "chained"])
def test_a_right_value_with_a_wrong_output_is_told_from_a_wrong_value(layout: str) -> None:
    task = task_of(layout)
    flipped = dissected(build(task, answer=-1), task)
    for multiple in LADDER:
        assert shares(flipped, "recall", multiple) == {"output": 1}
        assert shares(flipped, "state", multiple) == {"right": 1}


@pytest.mark.parametrize("layout", ["separate", "chained"])
def test_a_value_that_never_arrives_is_not_mended_by_hard_attention(layout: str) -> None:
    task = task_of(layout)
    empty = dissected(build(task, value=0), task)
    for multiple in LADDER:
        causes = shares(empty, "recall", multiple)
        assert set(causes) == {"right", "value"}  # digits are 0 or 1: half is luck
        assert causes["value"] > 0.3


def test_a_value_in_another_form_is_read_all_the_same() -> None:
    assert shares(dissected(build(task_of(), value=-1), task_of()), "recall") == {"output": 1}


def test_output_is_wrong_only_where_the_due_answer_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, model = task_of(), build(task_of(), answer=-1)

    def always_one(*_: object) -> CheckedProbe:
        bias = torch.tensor([0.0, 1.0])
        return CheckedProbe(Place(HEAD, "stream"), Probe(torch.zeros(WIDTH, 2), bias), 1.0, 0.5)

    monkeypatch.setattr(Instruments, "answer_probe", property(always_one))
    digits = {
        rung.multiple: rung.batch.targets[recalled(task, rung.batch) >= 0].double().mean()
        for rung in draw_rungs(model, task, LADDER, SEQUENCES)
    }
    broken = dissected(model, task)
    for multiple, ones in digits.items():
        expected = {"output": pytest.approx(ones), "value": pytest.approx(1 - ones)}
        assert shares(broken, "recall", multiple) == expected


@pytest.mark.parametrize(("answer", "fits"), [(1, 1), (-1, 2)])
def test_answers_are_probed_only_if_one_needs_it(
    monkeypatch: pytest.MonkeyPatch, answer: float, fits: int
) -> None:
    task, places = task_of(), list[Place]()

    def fit(*arguments: object) -> dict[Place, Probe]:
        places.extend(arguments[2])  # type: ignore[call-overload]
        return fit_probes(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(instruments, "fit_probes", fit)
    dissected(build(task, answer=answer), task)
    assert places == [Place("1.lstm", "hidden"), Place(HEAD, "stream")][:fits]


def test_a_state_that_fades_is_the_cause_also_of_what_is_recalled_of_it() -> None:
    separate = dissected(build(task_of(), keep=2.0), task_of())
    assert set(shares(separate, "state")) == {"right", "state"}
    assert shares(separate, "state")["state"] > 0.08
    assert shares(separate, "recall") == {"right": 1}
    task = task_of("chained")
    chained = shares(dissected(build(task, keep=1.5), task), "recall")
    assert chained["state"] > 0.2
    assert chained["right"] + chained["state"] > 0.95


def test_a_right_state_with_a_wrong_output_is_told_from_a_wrong_state() -> None:
    task = task_of()
    assert shares(dissected(build(task, output=-1), task), "state") == {"output": 1}


@pytest.mark.parametrize("layout", ["separate", "chained"])
def test_a_state_that_no_probe_reads_is_no_cause(layout: str) -> None:
    task = task_of(layout)
    blind = dissected(build(task, keep=-20.0), task)  # the parity is forgotten at every token
    for multiple in LADDER:
        causes = shares(blind, "state", multiple)
        assert set(causes) == {"right", "unread"}
        assert causes["unread"] > 0.3
    recall = shares(blind, "recall")
    assert recall == {"right": 1} if layout == "separate" else set(recall) == {"right", "unread"}
    trained = {row["part"]: row["probe_trained"] for row in blind.rows}
    assert trained["state"] < 0.75
    assert trained["recall"] == (None if layout == "separate" else trained["state"])


@pytest.mark.parametrize(
    ("accuracy", "majority", "is_trusted"),
    [(0.513, 0.5, False), (0.74, 0.5, False), (0.75, 0.5, True), (0.6, 0.1, True)],
)
def test_a_probe_is_trusted_from_halfway_between_the_most_frequent_state_and_all(
    accuracy: float, majority: float, is_trusted: bool
) -> None:
    reader = CheckedProbe(Place("1.lstm", "hidden"), None, accuracy, majority)  # type: ignore[arg-type]
    assert reader.is_trusted == is_trusted


def test_a_model_without_attention_has_nothing_to_look_up_with() -> None:
    task = task_of()
    model = build(task)
    model.sublayers()[1].set_gate(0)
    closed = dissected(model, task)
    assert closed.retriever is None
    assert set(shares(closed, "recall")) == {"right", "no_attention"}
    assert shares(closed, "state") == {"right": 1}


def test_examples_are_answers_of_their_cause() -> None:
    task = task_of()
    model = build(task, sharpness=0.3)
    rungs = {rung.multiple: rung for rung in draw_rungs(model, task, LADDER, SEQUENCES)}
    examples = dissected(model, task).examples
    diluted = [e for e in examples if e["cause"] == "diluted" and e["multiple"] == 3]
    assert len(diluted) == anatomies.EXAMPLES
    for example in examples:
        batch, at = rungs[example["multiple"]].batch, (example["row"], example["token"])
        with torch.no_grad():
            answer = model(batch.inputs[at[0]][None])[0][0, at[1], : task.classes].argmax()
        assert (answer == batch.targets[at]) == (example["cause"] == "right")
        assert task.parts[batch.part[at]] == example["part"]


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        ("recall(keys=20, length=10)", "none"),
        ("flipflop(length=20)", "none"),
        ("copy(length=10)", "none"),
        ("composite(keys=20, length=10)", "none"),
        ("composite(keys=20, length=10, layout=interleaved)", "none"),
        ("composite(keys=20, length=10, layout=chained)", "source"),
        ("entangled_parity(keys=20, length=10)", "answer"),
        ("parity(length=10)", "none"),
    ],
)
def test_which_state_a_recalled_answer_needs_is_found_from_the_task(line: str, needed: str) -> None:
    task = outlast.task(line)
    batch = task.sample(task.lengths[1], 20, torch.Generator().manual_seed(0))
    assert needed_state(task, batch, recalled(task, batch)) == needed


@pytest.mark.parametrize("line", ["entangled_parity(keys=9, length=3)", "flipflop(length=8)"])
def test_shares_add_up_for_any_task_and_model(line: str) -> None:
    task = outlast.task(line)
    torch.manual_seed(0)
    for layout in ("lstm", "attention(tra, heads=2) > mlp", "lstm | attention(rope, heads=2)"):
        rows = anatomy(outlast.model(f"{layout} @ 8", task), task, (1, 3), 10, 20)
        for part in task.asked:
            for multiple in (1, 3):
                found = [r for r in rows if (r["part"], r["multiple"]) == (part, multiple)]
                assert sum(row["share"] for row in found) == pytest.approx(1)


def test_heads_that_look_past_the_source_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.zeros(len(retrieval.MEASURES), 4, 3)
    numbers[retrieval.MEASURES.index("weight")] = torch.tensor([0.3, 0.1, 0.1])
    numbers[retrieval.MEASURES.index("weight_after")] = torch.tensor([0.1, 0.8, 0.5])
    numbers[retrieval.MEASURES.index("weight_pair")] = 0.9  # before the source no value is known
    monkeypatch.setattr(retrieval, "measure", lambda *_: {"1.attention": 0 * numbers, "2": numbers})
    found = find_retriever(build(task_of()), task_of(), None)  # type: ignore[arg-type]
    assert found == Retriever("2", (1, 2), 1, pytest.approx(0.8))  # type: ignore[arg-type]


def test_heads_whose_weights_are_not_finite_do_not_retrieve() -> None:
    task, model = task_of(), build(task_of())
    batch = next(draw_rungs(model, task, (1,), 10)).batch
    qkv = model.sublayers()[1].mixer.qkv.weight
    with torch.no_grad():
        qkv.mul_(1e30)
    assert find_retriever(model, task, batch).heads == (1,)
    with torch.no_grad():
        qkv.fill_(1e30)
    with pytest.raises(SpecError, match="expected a model with finite attention weights"):
        find_retriever(model, task, batch)


@pytest.mark.parametrize("answer", [1, -1])
def test_small_blocks_give_the_same_table(monkeypatch: pytest.MonkeyPatch, answer: float) -> None:
    task = task_of("chained")
    model = build(task, sharpness=0.2, keep=2.5, answer=answer)
    whole = dissected(model, task)
    monkeypatch.setattr("outlast.mixers.attention.blocks.BUDGET", 2 * 32 * 5)
    monkeypatch.setattr(anatomies, "blocks", lambda batch: blocks(batch, 32 * 7))
    parts = dissected(model, task)
    assert parts.rows == whole.rows
    assert parts.examples == whole.examples


@pytest.mark.parametrize("answer", [1, -1])
def test_dissecting_leaves_the_model_untouched(answer: float) -> None:
    task, model = task_of(), build(task_of(), sharpness=0.2, answer=answer)
    with untouched(model, task):
        anatomy(model, task, (3,), 10, 20)


def test_an_answer_that_the_truth_does_not_explain_is_refused() -> None:
    class Silent(type(task_of())):  # type: ignore[misc]
        truth = Task.truth

    task = task_of()
    task.__class__ = Silent
    words = "has answers that come from nothing stored and from no running state: anatomy needs a"
    with pytest.raises(SpecError, match=words):
        anatomy(build(task), task, (1,), 4, 4)
