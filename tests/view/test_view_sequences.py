"""One sequence on the page: the answers, the state and the weights are those of the model."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import torch

import outlast
from outlast.analysis.watching import watch
from outlast.errors import SpecError
from outlast.registry import tasks
from outlast.reporting.causes import WORDS
from outlast.runs.checkpoint import load_checkpoint, save_checkpoint
from outlast.runs.records import read_results
from outlast.runs.status import own_state
from outlast.tasks import Task
from outlast.view.library import Library
from outlast.view.live import LARGEST, LiveModel
from outlast.view.pictures import DROPPED, LAST, LATER, SIDE, MapKeeper, levels_of
from outlast.view.sequences import Sequence, make_sequence, stops
from view_runs import SEQUENCES, library_of

TASK = "composite(modulus=2, keys=32, queries=2, length=4)"


def weights_of(chunk: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    """The weights of a chunk by layer, (heads, queries, keys), as the page decodes them."""
    tables = []
    for layer in chunk["layers"]:
        integers = np.frombuffer(base64.b64decode(layer["weights"]), "<i2")
        table = integers.reshape(layer["heads"], chunk["queries"], chunk["keys"])
        tables.append(table * layer["scale"])
    return tables


def test_answers_of_the_page_add_up_to_the_results_of_the_test(
    library: Library, runs: Path
) -> None:
    row = next(r for r in read_results(runs / "study/dat/results.json").rows if r["seed"] == 1)
    names = [f"draw-{row['length']}-{i}-of-{SEQUENCES}" for i in range(SEQUENCES)]
    traces = [library.sequence("study--dat", 1, name) for name in names]
    for part in ("state", "recall"):
        answers = [[a for a in t["answers"] if a and a["part"] == part] for t in traces]
        exact = sum(all(a["right"] for a in each) for each in answers) / SEQUENCES
        assert row["exact"] is not None
        assert exact == row["exact"][part]


def test_trace_has_words_sources_and_the_true_state(library: Library) -> None:
    trace = library.sequence("study--dat", 0, "own-k3 1 k5 1 k6 0 = k5 k3")
    assert trace["words"] == ["k3", "1", "k5", "1", "k6", "0", "=", "k5", "k3"]
    assert trace["state"] == [None, 1, None, 0, None, 0, 0, None, None]
    assert trace["source"][-2:] == [3, 1]
    due = [answer["expected"] if answer else None for answer in trace["answers"]]
    assert due == [None, "1", None, "0", None, "0", "0", "1", "1"]
    said = trace["says"]
    assert [place is None for place in said] == [answer is not None for answer in due]
    assert all(word in ("0", "1") and 0.5 <= chance <= 1 for word, chance in filter(None, said))
    assert trace["layers"] == [{"name": "2.attention", "heads": 2}]
    assert trace["notes"] == []


def test_probabilities_are_those_of_the_model(library: Library, runs: Path) -> None:
    trace = library.sequence("study--dat", 1, "draw-4-2")
    model, sequence = (
        outlast.load(runs / "study/dat", 1),
        make_sequence(outlast.task(TASK), "draw-4-2"),
    )
    with torch.no_grad():
        chances = model(torch.tensor([sequence.tokens]))[0][0].softmax(-1)
    place = next(i for i, answer in enumerate(trace["answers"]) if answer)
    answer = trace["answers"][place]
    assert answer["chance"] == pytest.approx(chances[place].max().item(), abs=1e-4)
    assert answer["given"] == str(chances[place].argmax().item())


@pytest.mark.parametrize("run", ["dat", "tra"])
def test_attention_rows_are_those_of_the_model_and_only_zero_is_zero(
    library: Library, runs: Path, run: str
) -> None:
    sequence = make_sequence(outlast.task(TASK), "draw-8-1")
    tokens = torch.tensor([sequence.tokens])
    queries = torch.arange(tokens.shape[1])[None]
    seen = watch(outlast.load(runs / "study" / run, 0), tokens, queries).weights["2.attention"]
    chunk = library.attention(f"study--{run}", 0, "draw-8-1", 0)
    (shown,) = weights_of(chunk)
    np.testing.assert_allclose(shown, seen[0].numpy(), atol=0.6 * seen.max().item() / LARGEST)
    past = np.tril(np.ones(shown.shape[1:], bool))
    assert ((shown == 0) == (seen[0].numpy() == 0)).all()
    assert (shown[:, past] == 0).any() == (run == "tra")


def test_attention_of_a_long_sequence_comes_in_chunks(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = weights_of(library.attention("study--dat", 0, "draw-9-0", 0))[0]
    monkeypatch.setattr("outlast.view.live.QUERIES", 8)
    second = library.attention("study--dat", 0, "draw-9-0", 1)
    assert (second["first"], second["queries"], second["keys"]) == (8, 8, 16)
    np.testing.assert_allclose(weights_of(second)[0], whole[:, 8:16, :16], atol=1e-4)
    last = library.attention("study--dat", 0, "draw-9-0", 2)
    assert (last["first"], last["queries"], last["keys"]) == (16, 5, 21)


def test_run_without_attention_and_task_without_state_say_so(library: Library) -> None:
    trace = library.sequence("lstm", 0, "draw-4-0")
    assert trace["notes"] == ["This run has no attention: there are no weights to show."]
    assert library.attention("lstm", 0, "draw-4-0", 0)["layers"] == []


def test_map_is_a_picture_of_one_head(library: Library) -> None:
    answer = library.attention_map("study--tra", 0, "draw-8-1", 0, 1)
    kind, _, picture = answer["picture"].partition(",")
    assert kind == "data:image/png;base64"
    pixels = matplotlib.image.imread(io.BytesIO(base64.b64decode(picture)))
    (weights,) = weights_of(library.attention("study--tra", 0, "draw-8-1", 0))
    assert pixels.shape == (*weights.shape[1:], 4)
    opacity = pixels[..., 3]
    assert (opacity[~np.tril(np.ones(opacity.shape, bool))] == 0).all()
    strongest = np.unravel_index(weights[1].argmax(), weights[1].shape)
    assert opacity[strongest] == opacity.max()
    dropped = (weights[1] == 0) & np.tril(np.ones(opacity.shape, bool))
    assert len(np.unique(pixels[dropped], axis=0)) == 1


def test_levels_tell_dropped_from_later_and_small_from_large() -> None:
    levels = levels_of(torch.tensor([[0.0, 1e-9, 0.5, 1.0, 0.0]]), first=3)
    assert levels.tolist() == [[DROPPED, 2, 2 + round(0.5**0.5 * 253), 255, LATER]]


def test_levels_are_shares_of_the_largest_weight_of_a_row() -> None:
    diffuse = torch.full((2, 64), 1 / 64)
    assert (levels_of(diffuse, first=63) == LAST).all()
    assert (levels_of(torch.zeros(1, 2), first=1) == DROPPED).all()


def test_large_map_keeps_the_largest_weight_of_a_square() -> None:
    keeper = MapKeeper(0, 2 * SIDE + 1)
    assert keeper.square == 3
    weights = torch.full((1, 1, 2, 9), 1e-9)
    weights[0, 0, :, 7] = 1.0
    inputs: Any = None
    keeper(outlast_block(weights, first=7, inputs=inputs))
    assert keeper.levels.max() == 255
    assert np.argwhere(keeper.levels == 255).tolist() == [[2, 2]]


def outlast_block(weights: torch.Tensor, first: int, inputs: Any) -> Any:
    from outlast.mixers.attention.look import AttentionBlock

    return AttentionBlock(weights, None, first, inputs)


def test_examples_are_answers_that_failed_for_their_cause(library: Library) -> None:
    found = library.examples("study--dat", 0, 8)
    wrong = [row for row in found["examples"] if row["cause"] != "right"]
    assert wrong
    for row in wrong[:5]:
        name = f"draw-{row['length']}-{row['row']}-of-{found['sequences']}"
        answer = library.sequence("study--dat", 0, name)["answers"][row["token"]]
        assert (answer["part"], answer["right"]) == (row["part"], False)


def test_wrong_answers_of_a_drawn_sequence_have_the_causes_of_the_anatomy(library: Library) -> None:
    listed = library.examples("study--dat", 0, 8)
    causes = set()
    for row in listed["examples"]:
        name = f"draw-{row['length']}-{row['row']}-of-{listed['sequences']}"
        words = library.sequence("study--dat", 0, name)["causes"][row["token"]]
        expected = None if row["cause"] == "right" else WORDS[row["cause"]]
        assert (words and words.split(":")[0]) == expected
        causes.add(row["cause"])
    assert {"right", "unfocused", "unread"} <= causes
    heads = library.sequence("study--dat", 0, "draw-8-0")["retrieving"]
    assert (heads["layer"], heads["heads"]) == ("2.attention", [0, 1])
    assert 0 < heads["weight"] < 1
    typed = library.sequence("study--dat", 0, "own-k3 1 k5 1 = k3")
    assert (set(typed["causes"]), typed["retrieving"]) == ({None}, heads)


@pytest.mark.parametrize(
    "spec", ["parity(length=4)", "copy(signs=2, length=4)", "regular(language=tomita3, length=8)"]
)
def test_every_kind_of_task_has_a_trace_with_its_causes(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = untrained(spec, monkeypatch)
    del live.__dict__["instruments"]
    trace = live.trace(f"draw-{live.task.lengths[1]}-0")
    json.dumps(trace, allow_nan=False)
    assert (trace["retrieving"] is None) == (spec != "copy(signs=2, length=4)")
    for cause, answer in zip(trace["causes"], trace["answers"], strict=True):
        assert cause is None or not answer["right"]


def test_attention_is_of_the_checkpoint_of_the_last_trace(runs: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs / "study/dat", tmp_path / "dat"))
    library, place = library_of(folder), ("dat", 0, "draw-8-1")
    old = library.sequence(*place)
    tensors, state = load_checkpoint(folder)
    save_checkpoint(folder, {name: -tensor for name, tensor in tensors.items()}, state)
    assert library.attention(*place, 0)["checkpoint"] == old["checkpoint"]
    assert library.attention_map(*place, 0, 0)["checkpoint"] == old["checkpoint"]
    new = library.sequence(*place)
    assert new["checkpoint"] != old["checkpoint"]
    assert new["answers"] != old["answers"]
    assert library.attention(*place, 0)["checkpoint"] == new["checkpoint"]


def test_a_sequence_is_drawn_once_for_all_that_is_asked_about_it(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    def draw(task: Task, name: str) -> Sequence:
        drawn.append(name)
        return make_sequence(task, name)

    monkeypatch.setattr("outlast.view.live.make_sequence", draw)
    library.sequence("study--dat", 0, "draw-9-1")
    library.attention("study--dat", 0, "draw-9-1", 0)
    library.attention_map("study--dat", 0, "draw-9-1", 0, 0)
    assert drawn == ["draw-9-1"]


def test_seed_that_diverged_and_run_that_is_unfinished_say_so(
    library: Library, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = own_state(runs / "study/dat")

    def notes(**changes: Any) -> list[str]:
        model = LiveModel(runs / "study/dat", 1, [])
        monkeypatch.setattr("outlast.view.live.own_state", lambda _: replace(state, **changes))
        found: list[str] = model.trace("draw-4-0")["notes"]
        return found

    assert notes() == []
    assert notes(step=1200) == []
    assert notes(step=20) == ["This run is at step 20 of 30."]
    assert notes(step=20, succeeded=[None, 15]) == []
    assert notes(parked=[20, None]) == []
    assert notes(parked=[None, 20]) == [
        "Seed 1 diverged: these are its last good weights, of step 20."
    ]


def test_states_are_read_at_every_place_of_the_model(library: Library) -> None:
    trace = library.sequence("study--dat", 0, "draw-8-0")
    places = [probe["place"] for probe in trace["read"]]
    assert places == [
        "output of 1.lstm", "stream before 2.attention", "stream before the output layer",
    ]  # fmt: skip
    assert all(len(probe["states"]) == len(trace["words"]) for probe in trace["read"])
    assert all(0.3 < probe["accuracy"] <= 1 for probe in trace["read"])


#: tasks beyond the defaults whose typed words may ask for what is no answer
SPECS = [name for name in tasks.names() if name != "text"]
SPECS += ["count(signs=2, most=1, length=3)", "flipflop(length=8, answers=tokens)"]


def untrained(spec: str, monkeypatch: pytest.MonkeyPatch) -> LiveModel:
    """A model that no folder holds."""
    live, task = LiveModel(Path(), 0, []), outlast.task(spec)
    model = outlast.model("lstm | attention(heads=1) > mlp @ 8", task, 0)
    live.__dict__ |= {"task": task, "model": model.eval(), "readers": [], "instruments": None}
    monkeypatch.setattr(live, "_training_notes", list)
    return live


@pytest.mark.parametrize("spec", SPECS)
def test_typed_words_are_answered_or_refused_in_words(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, dice = untrained(spec, monkeypatch), Random(0)
    refusals: list[str] = []
    words = [live.task.word(token) for token in range(live.task.vocabulary)]
    for _ in range(30):
        few = {*dice.choices(words, k=3), *words[-4:]}  # the last are what asks, and padding
        text = " ".join(dice.choices(sorted(few), k=dice.randint(1, 9)))
        try:
            trace = live.trace(f"own-{text}")
        except SpecError as error:
            refusals.append(str(error))
        else:
            json.dumps(trace, allow_nan=False)
    words_of_refusal = r": no answer from 0 to \d+ is right at token \d+, \S+$"
    assert all(re.search(words_of_refusal, refusal) for refusal in refusals)


@pytest.mark.parametrize("spec", SPECS)
def test_drawn_words_can_be_typed(spec: str) -> None:
    task = outlast.task(spec)
    for number in range(4):
        drawn = make_sequence(task, f"draw-{task.lengths[0]}-{number}-of-4")
        typed = make_sequence(task, f"own-{' '.join(map(task.word, drawn.tokens))}")
        assert (typed.tokens, typed.expected) == (drawn.tokens, drawn.expected)


@pytest.mark.parametrize(
    ("spec", "words", "place"),
    [
        ("flipflop(length=8)", "w r", "2, r"),
        ("flipflop(length=8, answers=tokens)", "w 1 w r", "4, r"),
        ("hierarchical_flipflop(length=8)", "w1 r1", "2, r1"),
        ("set_complement(signs=8, length=3)", "0 · 0", "1, 0"),
        ("count(signs=2, most=1, length=3)", "k0 k0 ? k0", "4, k0"),
    ],
)
def test_words_that_ask_for_what_is_no_answer_are_refused(
    spec: str, words: str, place: str
) -> None:
    task = outlast.task(spec)
    with pytest.raises(SpecError, match=rf"^sequence={re.escape(words)}: expected words such as"):
        make_sequence(task, f"own-{words}")
    with pytest.raises(SpecError, match=f"is right at token {place}$"):
        make_sequence(task, f"own-{words}")


def test_slider_has_every_trained_length_and_the_tested_ones() -> None:
    task = outlast.task(TASK)
    lengths = stops(task, [31])
    assert lengths[:4] == [1, 2, 3, 4]
    assert 31 in lengths
    assert max(lengths) == 32  # the task ends there
    assert stops(outlast.task("flipflop(length=8)"), [])[:3] == [4, 6, 8]
