"""Examples of the failure anatomy: what a still of the report is drawn from."""

import msgspec
import torch
from hand_built import build, task_of

from cards import VALUES, Cards, solved_by_hand
from outlast.analysis.anatomy import anatomy
from outlast.analysis.examples import anatomy_with_examples
from outlast.runs.analyses import Example


def test_each_cause_has_one_example_at_its_first_length() -> None:
    model = solved_by_hand()
    with torch.no_grad():
        model.sublayers()[1].mixer.out.weight.zero_()  # nothing is recalled
    rows = anatomy_with_examples(model, Cards(), (1, 2), 32)
    plain = [{name: row[name] for name in row if name != "example"} for row in rows]
    assert plain == anatomy(model, Cards(), (1, 2), 32)
    with_example = [row for row in rows if row["example"]]
    causes = {row["cause"] for row in rows if row["share"] and row["cause"] != "right"}
    assert causes
    assert {row["cause"] for row in with_example} == causes
    assert len(with_example) == len(causes)
    for row in with_example:
        assert row["multiple"] == 1
        assert row["share"]


def test_example_has_tokens_states_attention_and_answer() -> None:
    model = solved_by_hand()
    with torch.no_grad():
        model.sublayers()[1].mixer.out.weight.zero_()
    rows = anatomy_with_examples(model, Cards(), (1,), 32)
    (text,) = [row["example"] for row in rows if row["example"] and row["part"] == "recall"]
    example = msgspec.json.decode(str(text), type=Example)
    tokens = len(example.words)
    assert example.given != example.expected
    assert example.source is not None
    card = int(example.words[example.source].removeprefix("k"))
    assert str(card % VALUES) == example.expected
    assert example.read_from == "1.lstm hidden"
    assert len(example.state) == len(example.read) == tokens
    assert any(state is not None for state in example.state)
    assert example.read == example.state  # the state is set by hand, so the probe reads it
    assert example.retrieving is not None
    assert example.retrieving.names == ["2.attention, head 0"]
    assert (example.retrieving.offset, example.attended) == (0, example.source)
    assert example.retrieving.weight > 0.9
    assert set(example.retrieving.names) < set(example.heads)
    for weights in example.heads.values():
        assert len(weights) == tokens
        assert abs(sum(weights) - 1) < 0.02 or not any(weights)


def test_example_of_a_wrong_key_says_where_the_heads_look_instead() -> None:
    task = task_of()
    rows = anatomy_with_examples(build(task, shift=1), task, (1,), 64)
    (text,) = [row["example"] for row in rows if row["example"] and row["cause"] == "key"]
    example = msgspec.json.decode(str(text), type=Example)
    assert example.retrieving is not None
    weights = [example.heads[name] for name in example.retrieving.names]
    total = [sum(column) for column in zip(*weights, strict=True)]
    assert example.attended == total.index(max(total))
    assert example.source is not None
    assert example.attended not in (example.source, example.source + example.retrieving.offset)
