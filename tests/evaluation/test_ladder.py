"""Accuracy by length on models whose answers are known, and on models that are short of memory."""

from __future__ import annotations

import inspect
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import outlast
import outlast.evaluation.ladder as ladder_module
from outlast.errors import OutlastError, RunFolderError, SpecError
from outlast.evaluation.accuracy import chance_levels, exact_by_part
from outlast.evaluation.ladder import LADDER, SEQUENCES, evaluate, evaluate_stack, rungs
from outlast.registry import tasks
from outlast.runs.folder import PREVIOUS_RESULTS, RESULTS, write_json
from outlast.tasks import Batch, Task
from outlast.workflow.evaluate import evaluate_run
from tiny_runs import TASK, tiny, trained

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


class Recorder:
    """Remembers what a model is asked."""

    def __init__(self, model: Callable[[Tensor], Any]) -> None:
        self.model, self.seen = model, []

    def __call__(self, tokens: Tensor) -> Any:
        self.seen.append(tokens.clone())
        return self.model(tokens)


# ---- known answers -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", tasks.names())
def test_an_oracle_is_right_everywhere(name: str) -> None:
    task = tasks.build(SHORT.get(name, name))
    rows = evaluate(oracle(task), task, (1, 1.2, 3), 24)
    assert len(rows) == 3 * (1 + len(task.variants))
    for row in rows:
        assert set(row["exact"]) == {"joint", *task.parts}
        assert set(row["exact"].values()) == {1.0}, row
        assert set(row["answers"].values()) == {1.0}, row


CHANCE = [TASK, "parity(length=6)", "recall(keys=64, values=3, length=4)"]


@pytest.mark.parametrize("spec", CHANCE)
def test_a_constant_model_is_at_chance(spec: str) -> None:
    task = tasks.build(spec)
    for row in evaluate(constant(task), task, (1, 3), 2048):
        for part in task.parts:
            assert row["answers"][part] == pytest.approx(task.chance_level(part), abs=0.06)
        assert row["exact"]["joint"] < 0.6


@pytest.mark.parametrize("spec", CHANCE)
def test_a_model_that_guesses_is_exactly_at_chance(spec: str) -> None:
    """Guesses anew at each place; a constant does better where a key is asked for twice."""
    task, generator = tasks.build(spec), torch.Generator().manual_seed(0)
    (row,) = evaluate(lambda t: torch.rand(*t.shape, task.classes, generator=generator), task, (1,))
    for part, level in chance_levels(task).items():
        spread = math.sqrt(level * (1 - level) / SEQUENCES)
        assert abs(row["exact"][part] - level) < 4 * spread, part


def test_one_wrong_answer_spoils_a_sequence() -> None:
    task = tasks.build(TASK)  # parts: state, recall, running; running is auxiliary
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
    exact, answers = exact_by_part(logits, Batch(targets.clone(), targets, part), task)
    assert exact["joint"].tolist() == [True, True, False, False, False, True]
    assert exact["state"].tolist() == [True, True, False, True, False, True]
    assert exact["recall"].tolist() == [True, True, True, False, False, True]
    assert exact["running"].tolist() == [True, False, True, True, False, True]
    assert {k: int(v) for k, v in answers.items()} == {"state": 4, "recall": 8, "running": 3}


def test_chance_by_hand() -> None:
    # length 4, so four running answers; one state; two recalls; the running ones are not asked
    assert chance_levels(tasks.build(TASK)) == pytest.approx(
        {"joint": 0.5**3, "state": 0.5, "recall": 0.25, "running": 0.5**4}
    )


def test_the_counts_of_a_rung_are_read_from_the_device_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each look waits for the device; seeds and parts are looked at together."""
    task, looks = tasks.build(TASK), []
    batch = task.sample(4, 32, torch.Generator().manual_seed(0))
    models = [oracle(task), constant(task), right_in_part(task)]
    logits = torch.stack([m(batch.inputs) for m in models])
    real = Tensor.tolist
    for name in ("item", "__int__", "__float__", "__bool__"):
        monkeypatch.setattr(Tensor, name, None)
    monkeypatch.setattr(Tensor, "tolist", lambda own: looks.append(own.shape) or real(own))
    rows = ladder_module._measure(lambda _: logits, 3, task, batch, 32)
    assert looks == [(3, 1 + 3 * len(task.parts))]
    assert set(rows[0]["exact"].values()) == set(rows[0]["answers"].values()) == {1.0}
    assert 0 < rows[2]["exact"]["joint"] < 1


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
def test_what_a_model_may_return(wrap: Callable[[Tensor], Any]) -> None:
    task = tasks.build(TASK)
    inner = right_in_part(task)
    expected = evaluate(inner, task, (1, 2), 64)
    assert 0 < expected[0]["exact"]["joint"] < 1
    assert evaluate(lambda tokens: wrap(inner(tokens)), TASK, (1, 2), 64) == expected


def test_a_module_of_ours_and_a_spec() -> None:
    task = outlast.task("parity(length=6)")
    rows = outlast.evaluate(outlast.model("lstm @ 8", task, seed=0), "parity(length=6)", (1, 2), 32)
    assert [(r["length"], r["multiple"], r["tokens"]) for r in rows] == [
        (6, 1.0, task.tokens(6)),
        (12, 2.0, task.tokens(12)),
    ]


def test_no_gradient_is_kept() -> None:
    model = torch.nn.Embedding(tasks.build(TASK).vocabulary, 2)
    seen = []
    evaluate(lambda tokens: (seen.append(torch.is_grad_enabled()), model(tokens))[1], TASK, (1,), 8)
    assert seen == [False]
    assert torch.is_grad_enabled()


def test_by_default_there_are_thousands_of_sequences() -> None:
    task = tasks.build("parity(length=6)")
    model = Recorder(constant(task))
    evaluate(model, task, (1,))
    assert sum(len(t) for t in model.seen) == SEQUENCES >= 2000
    for function in (evaluate, evaluate_stack, evaluate_run):
        assert inspect.signature(function).parameters["sequences"].default == SEQUENCES
        assert inspect.signature(function).parameters["ladder"].default == LADDER
    assert {1, 3, 10} <= set(LADDER)


# ---- rungs -------------------------------------------------------------------------------------


def test_rungs_are_lengths_the_task_can_make() -> None:
    task = tasks.build("flipflop(length=10)")
    assert rungs(task, (1, 1.1, 1.2, 1.5, 2.3)) == [
        (1.0, 10), (1.1, 12), (1.2, 12), (1.5, 16), (2.3, 24)
    ]  # fmt: skip
    assert rungs(task, (0.1,)) == [(0.1, task.shortest)]
    assert rungs(tasks.build(TASK), (1.2, 3)) == [(1.2, 5), (3.0, 12)]


@pytest.mark.parametrize("multiple", [0, -1, math.nan, math.inf])
def test_a_multiple_that_is_none(multiple: float) -> None:
    with pytest.raises(SpecError, match="lengths="):
        evaluate(constant(tasks.build(TASK)), TASK, (1, multiple), 8)


def test_no_sequences() -> None:
    with pytest.raises(SpecError, match="sequences=0"):
        evaluate(constant(tasks.build(TASK)), TASK, (1,), 0)


def test_past_the_ceiling_of_the_task() -> None:
    task = tasks.build(TASK)
    model = Recorder(oracle(task))
    short, long = evaluate(model, task, (8, 10), 8)
    assert short["exact"]["joint"] == 1.0
    assert "reason" not in short
    assert (long["exact"], long["answers"]) == (None, None)
    assert long["reason"] == "the task ends at length 32"
    assert (long["length"], long["multiple"]) == (40, 10.0)
    assert max(t.shape[1] for t in model.seen) == task.tokens(32)


@pytest.mark.parametrize("told", [True, False])
def test_past_the_ceiling_of_the_model(told: bool) -> None:
    task = outlast.task(TASK)
    model = outlast.model("attention(learned(ceiling=16), heads=2) @ 8", task, seed=0)
    assert model.ceiling == 16
    given = {"ceiling": 12} if told else {}
    short, long = evaluate(model, task, (1, 3), 8, **given)
    assert short["exact"] is not None
    assert long["exact"] is None
    limit = 12 if told else 16
    assert long["reason"] == f"the model ends at {limit} tokens, this takes {task.tokens(12)}"


def test_variants_are_tested_too() -> None:
    task = tasks.build("flipflop(length=40)")
    model = Recorder(oracle(task))
    rows = evaluate(model, task, (1, 2), 64)
    assert [(r["variant"], r["length"]) for r in rows] == [
        (None, 40), (None, 80), ("sparse", 40), ("sparse", 80), ("dense", 40), ("dense", 80)
    ]  # fmt: skip
    ignored = [(t == 4).float().sum(1).mean().item() / (t.shape[1] / 2) for t in model.seen]
    assert ignored[0] == pytest.approx(0.8 * 18 / 20, abs=0.05)
    assert ignored[2] == pytest.approx(0.98 * 18 / 20, abs=0.03)
    assert ignored[4] == pytest.approx(0.1 * 18 / 20, abs=0.05)


def test_variants_can_be_left_out() -> None:
    task = tasks.build("flipflop(length=10)")
    model = oracle(task)
    rows = evaluate_stack(lambda t: model(t)[None], 1, task, (1, 2), 8, variants=False)
    assert [r["variant"] for r in rows[0]] == [None, None]


# ---- the same sequences for everyone -----------------------------------------------------------


def asked(monkeypatch: pytest.MonkeyPatch, tokens: int, seeds: int = 1, **options: Any) -> Tensor:
    monkeypatch.setitem(ladder_module.TOKENS, "cpu", tokens)
    task = tasks.build(TASK)
    model = Recorder(lambda t: constant(task)(t).expand(seeds, -1, -1, -1))
    evaluate_stack(model, seeds, task, (2,), 100, **options)
    return torch.cat(model.seen)


def test_sequences_do_not_depend_on_batches_or_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    first = asked(monkeypatch, 2**17)
    assert len(first) == 100
    assert torch.equal(asked(monkeypatch, 200), first)
    assert torch.equal(asked(monkeypatch, 1), first)
    assert torch.equal(asked(monkeypatch, 2**17, seeds=5), first)
    assert not torch.equal(asked(monkeypatch, 2**17, stream_name="probe 20"), first)


def test_sequences_are_not_those_of_training() -> None:
    task = tasks.build(TASK)
    model = Recorder(constant(task))
    evaluate(model, task, (1,), 8)
    training = task.sample(4, 8, outlast.streams.stream(torch.device("cpu"), "data", 0, 0))
    assert not torch.equal(model.seen[0], training.inputs)


def test_numbers_do_not_depend_on_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    task = tasks.build(TASK)
    whole = evaluate(right_in_part(task), task, (1, 3), 50)
    assert 0 < whole[0]["exact"]["joint"] < 1
    monkeypatch.setitem(ladder_module.TOKENS, "cpu", 77)
    assert evaluate(right_in_part(task), task, (1, 3), 50) == whole


def test_each_seed_has_its_own_numbers() -> None:
    task = tasks.build(TASK)
    models = [oracle(task), constant(task), right_in_part(task)]
    together = evaluate_stack(lambda t: torch.stack([m(t) for m in models]), 3, task, (1, 2), 40)
    assert together == [evaluate(m, task, (1, 2), 40) for m in models]


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
    task = tasks.build(TASK)
    inner, sizes = right_in_part(task), []

    def small(tokens: Tensor) -> Tensor:
        sizes.append(len(tokens))
        if len(tokens) > 7:
            raise error
        return inner(tokens)

    assert evaluate(small, task, (1,), 50) == evaluate(inner, task, (1,), 50)
    assert sizes == [50, 25, 12, 6, 6, 6, 6, 6, 6, 6, 6, 2]


def test_memory_that_runs_out_half_way_counts_nothing_twice() -> None:
    task = tasks.build(TASK)
    inner, calls = right_in_part(task), [0]

    def sometimes(tokens: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] == 1 or (calls[0] == 3 and len(tokens) > 12):
            raise torch.OutOfMemoryError("out of memory")
        return inner(tokens)

    assert evaluate(sometimes, task, (1,), 50) == evaluate(inner, task, (1,), 50)


def test_not_even_one_sequence_fits() -> None:
    def never(tokens: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        evaluate(never, TASK, (1,), 8)


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    calls = []

    def broken(tokens: Tensor) -> Tensor:
        calls.append(1)
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        evaluate(broken, TASK, (1,), 8)
    assert len(calls) == 1


# ---- a run folder ------------------------------------------------------------------------------


def test_a_run_is_measured_seed_by_seed(tmp_path: Path) -> None:
    run = tiny(
        model="attention(learned(ceiling=16), heads=2) > lstm @ 8",
        seeds=(5, 2),
        steps=10,
        probe_every=0,
    )
    folder = trained(run, tmp_path / "run")
    rows = evaluate_run(folder, (1, 3, 10), 16)
    written = json.loads((folder / RESULTS).read_text())
    assert written["rows"] == rows
    assert (written["format"], written["step"], written["sequences"]) == (1, 10, 16)
    assert [(r["seed"], r["multiple"]) for r in rows] == [
        (s, m) for s in (5, 2) for m in (1, 3, 10)
    ]
    assert [r["exact"] is None for r in rows] == [False, True, True] * 2
    assert rows[1]["reason"].startswith("the model ends at 16 tokens")
    assert rows[2]["reason"] == "the task ends at length 32"
    assert evaluate_run(folder, (1, 3, 10), 16) == rows


def test_a_test_of_no_length_is_an_error_and_leaves_the_results(tmp_path: Path) -> None:
    model = "attention(learned(ceiling=16), heads=2) @ 8"
    folder = trained(tiny(model=model, steps=5, probe_every=0), tmp_path / "run")
    evaluate_run(folder, (1, 3), 8)  # one that can be tested is enough
    before = (folder / RESULTS).read_bytes()
    says = r"^lengths=3 100: expected at least one .*\(length 12: the model .*; length 400: the"
    with pytest.raises(SpecError, match=says):
        evaluate_run(folder, (3, 100), 8)
    assert (folder / RESULTS).read_bytes() == before


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is trained and not tested."""
    return trained(tiny(steps=5, probe_every=0), tmp_path_factory.mktemp("once") / "run")


@pytest.fixture
def run(once: Path, tmp_path: Path) -> Path:
    """A copy of it, to be tested."""
    return Path(shutil.copytree(once, tmp_path / "run"))


@pytest.mark.parametrize(("ladder", "sequences"), [((1,), 8), ((1, 2, 3), 4), ((1, 4), 16)])
def test_results_that_had_more_are_kept(
    ladder: tuple[float, ...], sequences: int, run: Path
) -> None:
    said: list[str] = []
    evaluate_run(run, (1, 2), 8, say=said.append)
    before = (run / RESULTS).read_bytes()
    assert said == []
    evaluate_run(run, ladder, sequences, say=said.append)
    assert (run / PREVIOUS_RESULTS).read_bytes() == before
    assert json.loads((run / RESULTS).read_text())["sequences"] == sequences
    (words,) = said
    assert words.startswith("results.json is replaced; the one before (lengths 1 2, 8 sequences")
    assert words.endswith(f"is kept as {run / PREVIOUS_RESULTS}")


def test_results_that_had_no_more_are_replaced_without_a_word(run: Path) -> None:
    said: list[str] = []
    evaluate_run(run, (1, 2), 8, say=said.append)
    for ladder, sequences in (((1, 2), 8), ((1, 2, 3), 16)):
        evaluate_run(run, ladder, sequences, say=said.append)
    evaluate_run(run, (1,), 4, out=run.parent / "other.json", say=said.append)
    write_json(run / RESULTS, json.loads((run / RESULTS).read_text()) | {"step": 3})
    evaluate_run(run, (1,), 4, say=said.append)  # those were of other weights
    (run / RESULTS).write_text("damaged")
    evaluate_run(run, (1,), 4, say=said.append)
    assert said == []
    assert not (run / PREVIOUS_RESULTS).exists()


def test_the_largest_test_is_the_one_kept(run: Path) -> None:
    said: list[str] = []
    evaluate_run(run, (1, 2), 8, say=said.append)
    before = (run / RESULTS).read_bytes()
    for ladder in ((1,), (2,), (3,)):  # each has a length that the next has not
        evaluate_run(run, ladder, 4, say=said.append)
        assert (run / PREVIOUS_RESULTS).read_bytes() == before
    assert "has a larger test (lengths 1 2, 8 sequences each)" in said[-1]
    evaluate_run(run, (1, 2, 3), 16)
    evaluate_run(run, (1,), 4)
    assert json.loads((run / PREVIOUS_RESULTS).read_text())["sequences"] == 16
    # one of other weights is not worth keeping
    write_json(
        run / PREVIOUS_RESULTS, json.loads((run / PREVIOUS_RESULTS).read_text()) | {"step": 3}
    )
    evaluate_run(run, (2,), 4)
    assert json.loads((run / PREVIOUS_RESULTS).read_text())["sequences"] == 4


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        evaluate_run(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    "model",
    [lambda t: t, lambda t: torch.zeros(*t.shape, 1), lambda t: torch.zeros(3, *t.shape[1:], 2)],
    ids=["tokens", "too few answers", "another batch"],
)
def test_an_output_of_another_shape_is_an_error_that_says_which_is_wanted(model):
    with pytest.raises(
        OutlastError, match=r"output is of shape .*: expected \(8, \d+, 2\) or more"
    ):
        evaluate(model, tasks.build("parity(length=4)"), (1,), sequences=8)
