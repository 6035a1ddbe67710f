"""Accuracy by length on models whose answers are known, and on models that are short of memory."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import outlast
import outlast.evaluation.ladder as ladder_module
from outlast.errors import OutlastError, SpecError
from outlast.evaluation.accuracy import correct_by_part
from outlast.evaluation.chunks import Portion
from outlast.evaluation.ladder import default_sequences, evaluate, evaluate_stack, rungs
from outlast.registry import tasks
from outlast.runs.spec import LADDER, SEQUENCES, TEXT_SEQUENCES
from outlast.streams import stream
from outlast.tasks import Batch, Task
from tiny_runs import CPU, TASK

COMPOSITE: Task = tasks.build(TASK)
#: short versions of every task; one that is not here is taken as it comes
SHORT = {
    "composite": TASK,
    "flipflop": "flipflop(length=10)",
    "parity": "parity(length=6)",
    "recall": "recall(keys=64, length=4)",
}


def oracle(task: Task) -> Callable[[Tensor], Tensor]:
    """Solves each row in plain Python and is sure of it."""

    def model(tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, task.classes)
        for row, line in enumerate(tokens.tolist()):
            for place, answer in enumerate(task.solve(line)):
                if answer is not None:
                    logits[row, place, answer] = 1.0
        return logits

    return model


def constant(task: Task, answer: int = 0) -> Callable[[Tensor], Tensor]:
    def model(tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, task.classes)
        logits[..., answer] = 1.0
        return logits

    return model


def right_in_part(task: Task) -> Callable[[Tensor], Tensor]:
    """Right on some sequences and wrong on others, whichever batch they come in."""
    solve, guess = oracle(task), constant(task)

    def model(tokens: Tensor) -> Tensor:
        lucky = (tokens.sum(1) % 3 == 0)[:, None, None]
        return torch.where(lucky, solve(tokens), guess(tokens))

    return model


#: an oracle, a model that is always wrong in the same way, and one in between, of one task
MODELS = (oracle(COMPOSITE), constant(COMPOSITE), right_in_part(COMPOSITE))
SOLVED, CONSTANT, MIXED = MODELS


class Recorder:
    """Remembers the inputs of a model."""

    def __init__(self, model: Callable[[Tensor], Any]) -> None:
        self.model, self.inputs = model, list[Tensor]()

    def __call__(self, tokens: Tensor) -> Any:
        self.inputs.append(tokens.clone())
        return self.model(tokens)


# ---- known answers -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in tasks.names() if n != "text"])  # it has bits
def test_oracle_is_right_everywhere(name: str) -> None:
    task = tasks.build(SHORT.get(name, name))
    rows = evaluate(oracle(task), task, (1, 1.2, 3), 24)
    assert len(rows) == 3 * (1 + len(task.variants))
    for row in rows:
        assert set(row["exact"]) == {"joint", *task.parts}
        assert set(row["exact"].values()) == {1.0}, row
        assert set(row["answers"].values()) == {1.0}, row


def test_flipflop_token_on_top_is_ignored_among_bits_and_wrong_among_tokens() -> None:
    def model(tokens: Tensor) -> Tensor:
        logits = torch.cat([oracle(bits)(tokens), torch.zeros(*tokens.shape, 4)], -1)
        logits[: len(logits) // 4, :, 3] = 2.0  # `r` is above the right bit in a quarter of rows
        return logits

    bits = tasks.build("flipflop(length=10)")
    tokens = tasks.build("flipflop(length=10, answers=tokens)")
    for task, share in ((bits, 1.0), (tokens, 0.75)):
        rows = evaluate(model, task, (1, 2), 64)
        assert [row["exact"]["joint"] for row in rows] == [share] * 6
    assert rows[0]["answers"]["recall"] < 1


def test_flipflop_among_tokens_needs_an_output_for_every_token() -> None:
    assert outlast.model("mlp @ 8, head=2", "flipflop") is not None
    with pytest.raises(SpecError, match="head=2: expected at least 6"):
        outlast.model("mlp @ 8, head=2", "flipflop(answers=tokens)")
    with pytest.raises(OutlastError, match=r"expected \(8, 512, 6\) or more"):
        evaluate(lambda t: torch.zeros(*t.shape, 2), "flipflop(answers=tokens)", (1,), 8)


@pytest.mark.parametrize("spec", [TASK, "parity(length=6)", "recall(keys=64, values=3, length=4)"])
def test_constant_and_guessing_models_are_at_chance(spec: str) -> None:
    task, generator = tasks.build(spec), torch.Generator().manual_seed(0)
    for row in evaluate(constant(task), task, (1, 3), 2048):
        for part in task.parts:
            assert row["answers"][part] == pytest.approx(task.chance_level(part), abs=0.06)
        assert row["exact"]["joint"] < 0.6
    # one that guesses anew at each place: a constant does better where a key is asked for twice
    (row,) = evaluate(lambda t: torch.rand(*t.shape, task.classes, generator=generator), task, (1,))
    for part, level in task.chance_levels().items():
        spread = math.sqrt(level * (1 - level) / SEQUENCES)
        assert abs(row["exact"][part] - level) < 4 * spread, part


def test_one_wrong_answer_spoils_a_sequence() -> None:
    # parts: state, recall, running; running is auxiliary
    part = torch.tensor([[2, 0, 1, 1]] * 5 + [[-1, 0, 1, -1]])
    targets = torch.tensor([[1, 0, 1, 0]] * 5 + [[-100, 1, 1, -100]])
    guess = torch.tensor(
        [
            [1, 0, 1, 0],  # all right
            [0, 0, 1, 0],  # the running answer wrong, which is not asked
            [1, 1, 1, 0],  # the state wrong
            [1, 0, 0, 0],  # one of two recalls wrong
            [0, 1, 0, 1],  # all wrong
            [0, 1, 1, 1],  # right where it is asked
        ]
    )
    logits = torch.nn.functional.one_hot(guess, 2).float()
    correct = correct_by_part(logits, Batch(targets.clone(), targets, part), COMPOSITE)
    exact, answers = correct.exact, correct.answers
    assert int(correct.nan) == 0
    assert exact["joint"].tolist() == [True, True, False, False, False, True]
    assert exact["state"].tolist() == [True, True, False, True, False, True]
    assert exact["recall"].tolist() == [True, True, True, False, False, True]
    assert exact["running"].tolist() == [True, False, True, True, False, True]
    assert {k: int(v) for k, v in answers.items()} == {"state": 4, "recall": 8, "running": 3}


def test_chance_levels_by_hand() -> None:
    # length 4, so four running answers; one state; two recalls; the running ones are not asked
    assert COMPOSITE.chance_levels() == pytest.approx(
        {"joint": 0.5**3, "state": 0.5, "recall": 0.25, "running": 0.5**4}
    )


def test_counts_of_a_length_are_read_from_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look waits for the device; seeds and parts are looked at together."""
    batch, looks = COMPOSITE.sample(4, 32, torch.Generator().manual_seed(0)), []
    logits = torch.stack([model(batch.inputs) for model in MODELS])
    real = Tensor.tolist
    for name in ("item", "__int__", "__float__", "__bool__"):
        monkeypatch.setattr(Tensor, name, None)
    monkeypatch.setattr(Tensor, "tolist", lambda self: looks.append(self.shape) or real(self))
    accuracies = ladder_module._measure(lambda _: logits, 3, COMPOSITE, batch, Portion(32))
    assert looks == [(3, 2 + 3 * len(COMPOSITE.parts))]
    solved, _, mixed = accuracies
    assert set(solved.exact.values()) == set(solved.answers.values()) == {1.0}
    assert 0 < mixed.exact["joint"] < 1
    assert [accuracy.nan for accuracy in accuracies] == [0, 0, 0]


# ---- any callable ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: logits,
        lambda logits: (logits, "a state"),
        lambda logits: SimpleNamespace(logits=logits, loss=None),
        # an output for every token of the vocabulary, louder where no answer can be
        lambda logits: torch.cat([logits, torch.full((*logits.shape[:2], 9), 5.0)], -1),
    ],
    ids=["tensor", "tuple", "object", "wider"],
)
def test_models_may_return_logits_in_any_of_these_ways(wrap: Callable[[Tensor], Any]) -> None:
    expected = evaluate(MIXED, COMPOSITE, (1, 2), 64)
    assert 0 < expected[0]["exact"]["joint"] < 1
    rows = evaluate(lambda tokens: wrap(MIXED(tokens)), TASK, (1, 2), 64)
    for row in rows:
        row.pop("logits_from", None)
    assert rows == expected


@pytest.mark.parametrize(
    "model",
    [lambda t: t, lambda t: torch.zeros(*t.shape, 1), lambda t: torch.zeros(3, *t.shape[1:], 2)],
    ids=["tokens", "too few answers", "another batch"],
)
def test_output_of_another_shape_is_an_error_with_the_right_one(
    model: Callable[[Tensor], Tensor],
) -> None:
    message = r"output is of shape .*: expected \(8, \d+, 2\) or more"
    with pytest.raises(OutlastError, match=message):
        evaluate(model, "parity(length=4)", (1,), sequences=8)


def test_model_of_ours_is_measured_on_a_spec() -> None:
    task = outlast.task("parity(length=6)")
    rows = outlast.evaluate(outlast.model("lstm @ 8", task, seed=0), "parity(length=6)", (1, 2), 32)
    assert [(r["length"], r["multiple"], r["tokens"]) for r in rows] == [
        (6, 1.0, task.tokens(6)),
        (12, 2.0, task.tokens(12)),
    ]


def test_model_runs_without_gradients() -> None:
    model, enabled = torch.nn.Embedding(COMPOSITE.vocabulary, 2), []
    evaluate(lambda t: (enabled.append(torch.is_grad_enabled()), model(t))[1], TASK, (1,), 8)
    assert enabled == [False]
    assert torch.is_grad_enabled()


def test_defaults_are_the_ladder_and_thousands_of_sequences() -> None:
    task = tasks.build("parity(length=6)")
    model = Recorder(constant(task))
    evaluate(model, task, (1,))
    assert sum(map(len, model.inputs)) == default_sequences(task) == SEQUENCES >= 2000
    assert default_sequences(tasks.build("text(length=64)")) == TEXT_SEQUENCES
    for function in (evaluate, evaluate_stack):
        assert inspect.signature(function).parameters["ladder"].default == LADDER


# ---- lengths -----------------------------------------------------------------------------------


def test_rungs_are_lengths_the_task_can_make() -> None:
    task = tasks.build("flipflop(length=10)")
    assert rungs(task, (1, 1.1, 1.2, 1.5, 2.3)) == [
        (1.0, 10), (1.1, 12), (1.2, 12), (1.5, 16), (2.3, 24)
    ]  # fmt: skip
    assert rungs(task, (0.1,)) == [(0.1, task.shortest)]
    assert rungs(COMPOSITE, (1.2, 3)) == [(1.2, 5), (3.0, 12)]


@pytest.mark.parametrize(
    ("ladder", "sequences", "message"),
    [
        ((), 8, "ladder=: expected at least one multiple"),
        *[((1, multiple), 8, "ladder=") for multiple in (0, -1, math.nan, math.inf, 1e300)],
        ((1,), 0, "sequences=0"),
    ],
)
def test_no_length_or_no_sequences_is_refused(
    ladder: Sequence[float], sequences: int, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        evaluate(CONSTANT, TASK, ladder, sequences)
    if "ladder" in message:  # the command line calls them lengths
        with pytest.raises(SpecError, match=message.replace("ladder", "lengths")):
            rungs(COMPOSITE, ladder)


def test_lengths_past_the_ceiling_of_the_task_are_not_tested() -> None:
    model = Recorder(SOLVED)
    short, long = evaluate(model, COMPOSITE, (8, 10), 8)
    assert short["exact"]["joint"] == 1.0
    assert "reason" not in short
    assert (long["exact"], long["answers"]) == (None, None)
    assert long["reason"].startswith("the task ends at length 32: keys=32 and key_tokens=1 make")
    assert (long["length"], long["multiple"]) == (40, 10.0)
    assert max(t.shape[1] for t in model.inputs) == COMPOSITE.tokens(32)


@pytest.mark.parametrize(("options", "limit"), [({}, 16), ({"ceiling": 12}, 12)])
def test_lengths_past_the_ceiling_of_the_model_are_not_tested(
    options: dict[str, int], limit: int
) -> None:
    model = outlast.model("attention(learned(ceiling=16), heads=2) @ 8", COMPOSITE, seed=0)
    assert model.ceiling == 16
    short, long = evaluate(model, COMPOSITE, (1, 3), 8, **options)
    assert short["exact"] is not None
    assert long["exact"] is None
    tokens = COMPOSITE.tokens(12)
    assert long["reason"] == f"the model ends at {limit} tokens, this takes {tokens}"


def test_variants_are_tested_too_unless_left_out() -> None:
    task = tasks.build("flipflop(length=40)")
    model = Recorder(oracle(task))
    rows = evaluate(model, task, (1, 2), 64)
    assert [(r["variant"], r["length"]) for r in rows] == [
        (None, 40), (None, 80), ("sparse", 40), ("sparse", 80), ("dense", 40), ("dense", 80)
    ]  # fmt: skip
    ignored = [(t == 4).float().sum(1).mean().item() / (t.shape[1] / 2) for t in model.inputs]
    assert ignored[0] == pytest.approx(0.8 * 18 / 20, abs=0.05)
    assert ignored[2] == pytest.approx(0.98 * 18 / 20, abs=0.03)
    assert ignored[4] == pytest.approx(0.1 * 18 / 20, abs=0.05)
    (rows,) = evaluate_stack(lambda t: model(t)[None], 1, task, (1, 2), 8, variants=False)
    assert [r["variant"] for r in rows] == [None, None]


# ---- the same sequences for everyone -----------------------------------------------------------


def test_sequences_do_not_depend_on_batches_or_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    def sequences(tokens: int, seeds: int = 1, **options: Any) -> Tensor:
        monkeypatch.setitem(ladder_module.TOKENS, "cpu", tokens)
        model = Recorder(lambda t: CONSTANT(t).expand(seeds, -1, -1, -1))
        evaluate_stack(model, seeds, COMPOSITE, (2,), 100, **options)
        return torch.cat(model.inputs)

    first = sequences(2**17)
    assert len(first) == 100
    assert torch.equal(sequences(200), first)
    assert torch.equal(sequences(1), first)
    assert torch.equal(sequences(2**17, seeds=5), first)
    assert not torch.equal(sequences(2**17, stream_name="probe 20"), first)


def test_sequences_are_not_those_of_training() -> None:
    model = Recorder(CONSTANT)
    evaluate(model, COMPOSITE, (1,), 8)
    training = COMPOSITE.sample(4, 8, stream(CPU, "data", 0, 0))
    assert not torch.equal(model.inputs[0], training.inputs)


def test_accuracies_do_not_depend_on_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluate(MIXED, COMPOSITE, (1, 3), 50)
    assert 0 < whole[0]["exact"]["joint"] < 1
    monkeypatch.setitem(ladder_module.TOKENS, "cpu", 77)
    assert evaluate(MIXED, COMPOSITE, (1, 3), 50) == whole


def test_each_seed_has_its_own_accuracies() -> None:
    together = evaluate_stack(
        lambda t: torch.stack([model(t) for model in MODELS]), 3, COMPOSITE, (1, 2), 40
    )
    assert together == [evaluate(model, COMPOSITE, (1, 2), 40) for model in MODELS]


# ---- short of memory ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."),
    ],
    ids=["cuda", "python", "cpu"],
)
def test_batches_are_halved_until_they_fit(error: Exception) -> None:
    sizes = []

    def small(tokens: Tensor) -> Tensor:
        sizes.append(len(tokens))
        if len(tokens) > 7:
            raise error
        return MIXED(tokens)

    assert evaluate(small, COMPOSITE, (1,), 50) == evaluate(MIXED, COMPOSITE, (1,), 50)
    assert sizes == [50, 25, 12, 6, 6, 6, 6, 6, 6, 6, 6, 2]


def test_memory_that_runs_out_half_way_counts_nothing_twice() -> None:
    calls = [0]

    def sometimes(tokens: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] == 1 or (calls[0] == 3 and len(tokens) > 12):
            raise torch.OutOfMemoryError("out of memory")
        return MIXED(tokens)

    assert evaluate(sometimes, COMPOSITE, (1,), 50) == evaluate(MIXED, COMPOSITE, (1,), 50)


@pytest.mark.parametrize(
    ("error", "sizes"),
    [
        (torch.OutOfMemoryError("not even one sequence fits"), [8, 4, 2, 1]),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), [8]),
    ],
    ids=["out of memory", "another error"],
)
def test_error_that_smaller_batches_do_not_help_is_raised(
    error: Exception, sizes: list[int]
) -> None:
    tried = []

    def broken(tokens: Tensor) -> Tensor:
        tried.append(len(tokens))
        raise error

    with pytest.raises(type(error), match=str(error)):
        evaluate(broken, TASK, (1,), 8)
    assert tried == sizes


def test_model_with_too_few_tokens_is_a_clear_error() -> None:
    with pytest.raises(OutlastError, match=r"sequences of 7 tokens, 0 to 2: index out of range"):
        evaluate(torch.nn.Embedding(2, 4), "parity(length=6)", (1,), sequences=4)
    model = torch.nn.Embedding(8, 4)
    model.config = SimpleNamespace(vocab_size=2)  # type: ignore[assignment]
    with pytest.raises(SpecError, match=r"vocab_size of the model=2: expected more than 2"):
        evaluate(model, "parity(length=6)", (1,), sequences=4)
