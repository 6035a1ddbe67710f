"""Shapes and shares that agreement with the solver alone would not show."""

from collections import Counter
from itertools import pairwise

import pytest
import torch

from outlast import registry
from outlast.errors import SpecError


def drawn(spec, length, batch, seed=0):
    task = registry.tasks.build(spec)
    return task, task.sample(length, batch, torch.Generator().manual_seed(seed))


def answered(task, batch, part):
    return batch.targets[batch.part == task.parts.index(part)]


@pytest.mark.parametrize("spec", ["composite", "recall", "entangled_parity"])
def test_stored_keys_are_distinct(spec):
    task, batch = drawn(spec, 20, 50)
    for row in batch.inputs.tolist():
        stored = [key for key, after in pairwise(row) if after < task.classes]
        stored = [key for key in stored if task.word(key).startswith("k")]
        assert len(stored) == len(set(stored)) == 20


@pytest.mark.parametrize("shortest", [1, 2, 4])
def test_composite_is_trained_on_lengths_from_the_shortest_on(shortest):
    task = registry.tasks.build(f"composite(from={shortest}, queries=2, length=5)")
    inputs = next(task.stream(batch=200)).inputs
    lengths = {row.index(task.equals) // 2 for row in inputs.tolist()}
    assert lengths == set(range(shortest, 6))


def key_signs(task, row):
    """The different tokens of keys in a row."""
    return {token for token in row if task.modulus <= token < task.equals}


@pytest.mark.parametrize(
    "more", ["", ", layout=interleaved", ", layout=chained", ", repeat=latest"]
)
def test_half_of_the_rows_in_training_draw_their_keys_from_a_pool(more):
    spec = f"composite(keys=90, key_tokens=2, key_pool=6, queries=2, length=20{more})"
    task = registry.tasks.build(spec)
    batch = task.sample((20, 20), 400, torch.Generator().manual_seed(0))
    signs = [key_signs(task, row) for row in batch.inputs.tolist()]
    pooled = [each for each in signs if len(each) <= 6]
    assert 150 < len(pooled) < 250
    assert len(set().union(*pooled)) == 90  # another pool for each row
    for row, targets in zip(batch.inputs[:20].tolist(), batch.targets[:20].tolist(), strict=True):
        assert targets == [-100 if answer is None else answer for answer in task.solve(row)]
    tested = task.test_batch(20, 50, torch.Generator().manual_seed(0)).inputs.tolist()
    plain = registry.tasks.build(spec.replace("key_pool=6, ", ""))
    assert tested == plain.test_batch(20, 50, torch.Generator().manual_seed(0)).inputs.tolist()
    longer = task.sample(40, 20, torch.Generator().manual_seed(0))  # more than a pool has, at times
    assert longer.inputs.shape[0] == 20


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            "keys=90, key_tokens=2, key_pool=4",
            "key_pool=4: expected 0, or from 5 with key_tokens=2",
        ),
        ("keys=90, key_tokens=2, key_pool=91", "key_pool=91: expected a whole number from 0 to 90"),
        ("keys=90, key_pool=8", "key_pool=8 cannot be combined with key_tokens=1"),
    ],
)
def test_pool_that_does_not_suffice_is_refused(arguments, words):
    with pytest.raises(SpecError, match=words):
        registry.tasks.build(f"composite({arguments}, length=20)")


def test_half_of_the_rows_in_training_draw_their_signs_from_a_pool():
    task = registry.tasks.build("copy(signs=30, length=20, sign_pool=3)")
    batch = task.sample((20, 20), 400, torch.Generator().manual_seed(0))
    signs = [set(row[:20]) for row in batch.inputs.tolist()]
    pooled = [each for each in signs if len(each) <= 3]
    assert 150 < len(pooled) < 250
    assert len(set().union(*pooled)) == 30  # another pool for each row
    for row, targets in zip(batch.inputs[:20].tolist(), batch.targets[:20].tolist(), strict=True):
        assert targets == [-100 if answer is None else answer for answer in task.solve(row)]
    tested = task.test_batch(20, 50, torch.Generator().manual_seed(0)).inputs.tolist()
    plain = registry.tasks.build("copy(signs=30, length=20)")
    assert tested == plain.test_batch(20, 50, torch.Generator().manual_seed(0)).inputs.tolist()


@pytest.mark.parametrize("pool", [1, 31, True, 2.0, "4"])
def test_pool_of_signs_that_cannot_be_drawn_from_is_refused(pool):
    with pytest.raises(SpecError, match=r"sign_pool=.*: expected 0, or a whole number from 2 to"):
        registry.tasks.entry("copy").factory(signs=30, sign_pool=pool)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("modsum", "state"),
        ("composite", "state"),
        ("composite", "recall"),
        ("composite(layout=chained)", "recall"),
        ("composite(layout=interleaved)", "state"),
        ("composite(layout=interleaved)", "recall"),
        ("entangled_parity", "state"),
        ("entangled_parity", "recall"),
        ("recall", "recall"),
        ("flipflop", "recall"),
        ("copy", "recall"),
        ("reverse", "recall"),
        ("sort", "recall"),
        ("needle", "recall"),
        ("count", "state"),
        ("permutation", "state"),
        ("dyck(k=3)", "state"),
        ("dyck(k=3, depth=2)", "running"),
        ("hierarchical_flipflop(ignore=0.3)", "recall"),
        ("recall(fillers=3)", "recall"),
    ],
)
def test_share_of_each_answer_is_the_chance_level(spec, part):
    task = registry.tasks.build(spec)
    task, batch = drawn(spec, (max(4, task.shortest), 20), 2000)
    answers = answered(task, batch, part)
    shares = answers.bincount(minlength=task.classes) / len(answers)
    torch.testing.assert_close(
        shares, torch.full((task.classes,), task.chance_level(part)), atol=0.04, rtol=0
    )


@pytest.mark.parametrize("spec", ["recall(queries=1)", "composite(queries=1)"])
def test_pairs_are_queried_equally_often(spec):
    _, batch = drawn(spec, 4, 4000)
    rows = batch.inputs.tolist()
    places = Counter(row.index(row[-1]) for row in rows)
    assert sorted(places) == [0, 2, 4, 6]
    assert all(abs(count / len(rows) - 0.25) < 0.04 for count in places.values())


def test_interleaved_items_are_half_of_each_kind_and_never_of_one():
    _, batch = drawn("composite(layout=interleaved, queries=1)", 8, 1000)
    lone = (batch.part == 2).sum(1)
    assert 1 <= lone.min() < lone.max() <= 7
    assert abs(lone.float().mean() / 8 - 0.5) < 0.03


def test_interleaved_with_two_items_has_one_of_each_in_either_order():
    _, batch = drawn("composite(layout=interleaved, queries=1)", 2, 200)
    assert (batch.part == 2).sum(1).eq(1).all()
    assert {row.index(2) for row in batch.part.tolist()} == {0, 2}


def test_chained_differs_from_separate_in_recall_alone():
    task, separate = drawn("composite", (2, 25), 20, seed=4)
    _, chained = drawn("composite(layout=chained)", (2, 25), 20, seed=4)
    assert torch.equal(separate.inputs, chained.inputs)
    changed = separate.targets != chained.targets
    assert (separate.part[changed] == task.parts.index("recall")).all()
    assert changed.any()


def test_keys_of_two_tokens_are_distinct_and_all_of_them_are_drawn():
    _, batch = drawn("composite(keys=5, key_tokens=2, queries=1)", 25, 30)
    for row in batch.inputs[:, :75].reshape(30, 25, 3).tolist():
        assert {(one - 10, two - 10) for one, two, _ in row} == {
            (one, two) for one in range(5) for two in range(5)
        }
    few = drawn("composite(keys=100, key_tokens=2, queries=1)", 5, 2000)[1].inputs[:, :15]
    first = few.reshape(2000, 5, 3)[:, :, 0].flatten().bincount()[10:]
    assert len(first) == 100  # 100 times each
    assert 60 < first.min() < first.max() < 140


def test_repeated_keys_are_drawn_uniformly_and_asked_by_pair():
    _, batch = drawn("composite(keys=4, repeat=latest, queries=1)", 6, 4000)
    keys = batch.inputs[:, 0:12:2]
    assert all(abs(share - 0.25) < 0.02 for share in (keys.flatten().bincount()[10:] / 24000))
    times = (keys == batch.inputs[:, -1:]).sum(1)
    assert times.min() == 1
    assert abs(times.float().mean() - (1 + 5 / 4)) < 0.1  # a pair of six, and chance for the others


def test_newest_value_of_a_repeated_key_is_the_answer():
    task = registry.tasks.build("composite(keys=3, repeat=latest, queries=1)")
    row = [10, 5, 11, 6, 10, 7, 11, 8, 13, 10]
    assert task.solve(row)[-1] == 7
    assert task.truth(row).source[-1] == 5
    assert task.solve([*row[:-1], 11])[-1] == 8


def test_supervision_changes_what_is_asked_and_nothing_else():
    _, aligned = drawn("composite", (2, 25), 20, seed=4)
    _, outcome = drawn("composite(supervision=outcome)", (2, 25), 20, seed=4)
    assert torch.equal(aligned.inputs, outcome.inputs)
    asked = outcome.part >= 0
    assert torch.equal(aligned.targets[asked], outcome.targets[asked])
    assert (aligned.part[~asked & (aligned.part >= 0)] == 2).all()


def test_entangled_questions_have_their_probability_and_always_close():
    task, batch = drawn("entangled_parity(queries=0.3)", 20, 1000)
    questions = (batch.inputs == task.question).sum(1).float()
    assert abs(questions.mean() - (1 + 0.3 * 18)) < 0.3
    for row in batch.inputs.tolist():
        assert row[row.index(task.equals) - 2] == task.question


def test_copy_says_the_row_again_in_order():
    task, batch = drawn("copy(signs=5)", (2, 9), 50)
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        at = inputs.index(task.equals)
        assert targets[at : 2 * at] == inputs[:at]
        assert inputs[at + 1 : 2 * at] == inputs[: at - 1]
        assert set(inputs[2 * at :]) <= {task.pad}


@pytest.mark.parametrize("ignore", [0.1, 0.8, 0.98])
def test_flipflop_instructions_have_their_probabilities(ignore):
    task, batch = drawn(f"flipflop(ignore={ignore})", 128, 300)
    words = [task.word(t) for t in batch.inputs[:, 2:-2:2].flatten().tolist()]
    shares = {word: count / len(words) for word, count in Counter(words).items()}
    assert abs(shares["i"] - ignore) < 0.02
    assert abs(shares["w"] - (1 - ignore) / 2) < 0.02
    assert abs(shares["r"] - (1 - ignore) / 2) < 0.02


def test_flipflop_rows_read_what_was_written_last():
    task, batch = drawn("flipflop(length=12, ignore=0.3)", (4, 12), 100)
    for row in batch.inputs.tolist():
        words = [task.word(t) for t in row if task.word(t) != "·"]
        pairs = list(zip(words[::2], words[1::2], strict=True))
        assert pairs[0][0] == "w"
        assert pairs[-1][0] == "r"
        bit = None
        for instruction, follows in pairs:
            bit = follows if instruction == "w" else bit
            assert instruction != "r" or follows == bit


def test_flipflop_variants_keep_the_length():
    task = registry.tasks.build("flipflop(length=64)")
    variants = {name: registry.tasks.build(spec) for name, spec in task.variants.items()}
    assert {name: t.ignore for name, t in variants.items()} == {"sparse": 0.98, "dense": 0.1}
    assert {t.lengths for t in variants.values()} == {(64, 64)}


def test_flipflop_variants_keep_the_answers():
    task = registry.tasks.build("flipflop(length=64, answers=tokens)")
    assert [registry.tasks.build(spec).classes for spec in task.variants.values()] == [6, 6]
    assert "answers" not in "".join(registry.tasks.build("flipflop").variants.values())


def test_flipflop_draws_the_same_whatever_counts_as_an_answer():
    bits, tokens = (drawn(f"flipflop(length=12, answers={a})", 12, 50) for a in ("bits", "tokens"))
    assert torch.equal(bits[1].inputs, tokens[1].inputs)
    assert torch.equal(bits[1].targets, tokens[1].targets)
    assert bits[0].chance_levels() == tokens[0].chance_levels()


def test_flipflop_refuses_odd_lengths_when_sampling():
    task = registry.tasks.build("flipflop(length=8)")
    with pytest.raises(ValueError, match=r"length=7: expected multiples of 2, 4 or more"):
        task.sample(7, 1, torch.Generator())
