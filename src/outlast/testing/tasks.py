"""What every task must hold to."""

from __future__ import annotations

import torch

from outlast.registry import tasks
from outlast.tasks import IGNORE, Batch, Task
from outlast.tasks.base import Length
from outlast.testing.compare import untouched_random_state
from outlast.testing.rules import NotApplicable, RuleSet, require

RULES = RuleSet[Task]()


def generator(seed: int = 0, device: str = "cpu") -> torch.Generator:
    """A fresh stream of random numbers."""
    return torch.Generator(device).manual_seed(seed)


def same(one: Batch, two: Batch) -> bool:
    """Equal in values, shapes and dtypes."""
    names = ("inputs", "targets", "part")
    pairs = [(getattr(one, name), getattr(two, name)) for name in names]
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)


@RULES.rule
def spec_builds_the_same_task(task: Task) -> None:
    """It is a `Task`, and its written-out spec builds a task with the same sequences.

    Why: A run folder records the spec. The task is built from it again to resume and to test.
    Fix: Inherit from `outlast.tasks.Task`, and let sequences depend on the arguments of the
    constructor, the length, the batch size and the generator alone.
    """
    require(isinstance(task, Task), f"it is a {type(task).__name__}, not a Task")
    for line in (task.spec, tasks.canonical(task.spec, full=True)):
        again: Task = tasks.build(str(line))
        require(again.spec == task.spec, f"{line} builds {again.spec}, not {task.spec}")
        one, two = (t.sample(t.lengths, 4, generator(5)).inputs for t in (task, again))
        require(torch.equal(one, two), f"{line} builds a task with other sequences")


@RULES.rule
def sample_agrees_with_solve(task: Task) -> None:
    """`solve` gives the targets of `sample`, at every position; each row asks for each part.

    Why: Answers that are computed in two independent ways are seldom wrong in the same way.
    Fix: `solve` reads one row of tokens, padding included. It returns None where `targets` is -100.
    """
    for number in range(12):
        low = task.shortest + (number % 4) * task.multiple
        high = low + number * task.multiple
        if task.ceiling is not None:
            low, high = min(low, task.ceiling), min(high, task.ceiling)
        check_against_solver(task, (low, high) if number % 2 else high, 1 + number % 6, number)


def check_against_solver(task: Task, length: Length, batch: int, seed: int) -> None:
    """Compare a batch with the answers of the solver."""
    drawn = task.sample(length, batch, generator(seed))
    shape = (batch, task.tokens(length if isinstance(length, int) else length[1]))
    types = {"inputs": torch.int64, "targets": torch.int64, "part": torch.int8}
    for name, dtype in types.items():
        table = getattr(drawn, name)
        require(table.shape == shape, f"{name} is {tuple(table.shape)}, not {shape}")
        require(table.dtype == dtype, f"{name} is {table.dtype}, not {dtype}")
        require(table.is_contiguous(), f"{name} is not contiguous")
    for inputs, targets, part in zip(drawn.inputs, drawn.targets, drawn.part, strict=True):
        solved = [IGNORE if answer is None else answer for answer in task.solve(inputs.tolist())]
        row = f"the row {inputs.tolist()} of length {length}"
        require(targets.tolist() == solved, f"{row} has targets {targets.tolist()}, not {solved}")
        marked = bool(((part == -1) == (targets == IGNORE)).all())
        require(marked, f"{row} has a part without a target, or a target without a part")
        parts = {task.parts[p] for p in part.tolist() if p >= 0}
        require(parts >= set(task.asked), f"{row} asks for {parts} alone, not for {task.asked}")


@RULES.rule
def ids_stay_within_the_vocabulary(task: Task) -> None:
    """Tokens are below `vocabulary`, answers below `classes`, and those within the vocabulary.

    Why: A model has an embedding for each token, and an output for each answer.
    Fix: Number the answers from 0, then the other tokens. `classes` counts the answers and
    `vocabulary` counts all tokens, padding included.
    """
    drawn = task.sample(task.lengths, 32, generator())
    asked = drawn.targets[drawn.targets != IGNORE]
    for name, table, first, count in (
        ("token", drawn.inputs, 0, task.vocabulary),
        ("answer", asked, 0, task.classes),
        ("part", drawn.part, -1, len(task.parts)),
    ):
        low, high = int(table.min()), int(table.max())
        fits = first <= low <= high < count
        require(fits, f"{name}s range from {low} to {high}: expected {first} to {count - 1}")
    fits = task.classes <= task.vocabulary
    require(fits, f"classes={task.classes} is more than vocabulary={task.vocabulary}")


@RULES.rule
def every_part_is_used(task: Task) -> None:
    """Training sequences ask for every part, and some part is not auxiliary.

    Why: A loss of a part without answers is not defined. A test counts the parts that are not
    auxiliary.
    Fix: Name in `parts` what `sample` asks for, and in `auxiliary` fewer than all of them.
    """
    part = task.sample(task.lengths, 64, generator()).part
    used = {task.parts[index] for index in part.unique().tolist() if index >= 0}
    require(used == set(task.parts), f"parts={task.parts}, but only {sorted(used)} are asked for")
    require(set(task.auxiliary) < set(task.parts), f"auxiliary={task.auxiliary}: too many, or none")
    require(task.asked, "every part is auxiliary: nothing is tested")


@RULES.rule
def parts_have_usable_names(task: Task) -> None:
    """Names of parts are distinct words, and none is `joint`.

    Why: A part is named in lines such as `dat(watch=state)`, and results hold `joint` beside them.
    Fix: Use `state`, `running` and `recall` if that is what is asked. Else a word of letters,
    digits and underscores.
    """
    require(len(set(task.parts)) == len(task.parts), f"parts={task.parts}: two have one name")
    for part in task.parts:
        usable = part.isidentifier() and part.isascii() and part != "joint"
        require(usable, f"part {part!r}: expected a word, and not joint")


@RULES.rule
def sample_depends_on_the_generator_alone(task: Task) -> None:
    """The same generator gives the same sequences, and torch's global random state is not used.

    Why: The data of a block are a pure function of the seed and the block. Resume relies on it.
    Fix: Give `generator=generator` to every draw, or draw through `outlast.tasks.sampling`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        with untouched_random_state():
            first = task.sample(task.lengths, 16, generator(3))
        torch.manual_seed(2)
        again = task.sample(task.lengths, 16, generator(3))
    require(same(first, again), "the same generator gave other sequences")


@RULES.rule
def different_draws_differ(task: Task) -> None:
    """Sequences differ from batch to batch and from seed to seed.

    Why: Training on a few fixed sequences is learning them by heart.
    Fix: Draw from the generator that is passed in. Do not copy it or seed it again.
    """
    stream = generator(3)
    one, two = (task.sample(task.lengths, 16, stream).inputs for _ in range(2))
    other = task.sample(task.lengths, 16, generator(4)).inputs
    require(not torch.equal(one, two), "two batches of one generator are the same")
    require(not torch.equal(one, other), "the batches of two generators are the same")


@RULES.rule
def range_draws_every_length(task: Task) -> None:
    """A range of lengths gives sequences of all of them.

    Why: Training draws the length of each row. Without it, only the longest is trained on.
    Fix: Use `lengths, longest = self.draw_lengths(length, batch, generator)`, and pad each row.
    """
    low, high = task.shortest, task.shortest + 3 * task.multiple
    if task.ceiling is not None and high > task.ceiling:
        raise NotApplicable(f"it has fewer than four lengths up to its ceiling of {task.ceiling}")
    drawn = task.sample((low, high), 200, generator())
    ends = {max(i for i, p in enumerate(row) if p >= 0) for row in drawn.part.tolist()}
    require(len(ends) >= 4, f"lengths from {low} to {high} give rows of {len(ends)} lengths alone")


@RULES.rule
def impossible_length_is_refused(task: Task) -> None:
    """A length that is too short, too long, or a range that runs backwards is a `ValueError`.

    Why: `outlast eval --lengths` asks for lengths that a person typed.
    Fix: `self.draw_lengths` refuses them. Set `shortest`, `ceiling` and `multiple`.
    """
    least = task.shortest
    cases: list[tuple[Length, str]] = [(least - 1, f"{least}"), ((8, 6), "")]
    if task.ceiling is not None:
        cases.append((task.ceiling + task.multiple, f"to {task.ceiling}"))
    for length, bound in cases:
        shown = length if isinstance(length, int) else f"{length[0]}-{length[1]}"
        try:
            task.sample(length, 1, generator())
        except ValueError as error:
            said, _, accepted = str(error).partition(": expected ")
            clear = said.endswith(f"length={shown}") and bound in accepted
            require(clear, f"length={shown} is refused without what is accepted: {error}")
        else:
            require(False, f"length={shown} is taken")
    if task.ceiling is not None:
        task.sample(task.ceiling, 1, generator())


@RULES.rule
def words_and_lengths_are_consistent(task: Task) -> None:
    """Each token is a word of its own without spaces; training lengths are possible ones.

    Why: `outlast show` draws an example sequence.
    Fix: Override `word`, or set `symbols` to one sign for each token after answers and keys.
    """
    words = [task.word(token) for token in range(task.vocabulary)]
    require(len(set(words)) == task.vocabulary, "two tokens have the same word")
    require(not any(" " in word for word in words), "a word contains a space")
    low, high = task.lengths
    fits = task.shortest <= low <= high
    require(fits, f"lengths={task.lengths}: expected some from shortest={task.shortest} on")


@RULES.rule
def chance_level_is_what_a_guess_gets(task: Task) -> None:
    """`chance_level(part)` is the accuracy of a guess: no lower than a blind one, no higher than
    the most frequent answer gets.

    Why: The page compares accuracies with it. A level that is too low makes a guess look learned.
    Fix: By default it is 1 / `classes`. Override `chance_level` for a part with fewer answers, or
    with answers that are not equally frequent.
    """
    rows = 512
    drawn = task.sample(task.lengths[1], rows, generator())
    support = task.support(drawn.inputs, 0, drawn.inputs.shape[1])
    for index, part in enumerate(task.parts):
        level, asked = task.chance_level(part), drawn.targets[drawn.part == index]
        require(0 < level < 1, f"chance_level({part!r}) is {level}: expected from 0 to 1")
        if not len(asked):
            continue
        if support is None:
            counts = asked.bincount()
            blind, best = 1 / int((counts > 0).sum()), float(counts.max() / counts.sum())
        else:
            shares = support[drawn.part == index].float().mean(0)
            blind, best = float(shares.mean()), float(shares.max())
        slack = 5 * (level * (1 - level) / rows) ** 0.5
        fits = blind - slack <= level <= best + slack
        said = f"chance_level({part!r}) is {level:.3f}"
        require(fits, f"{said}: a blind guess gets {blind:.3f}, the best single answer {best:.3f}")


@RULES.rule
def support_holds_the_targets(task: Task) -> None:
    """If the target is a distribution, `support` has every target, and chunks of it fit together.

    Why: `targets` has a draw from the distribution. A test reads long rows in chunks.
    Fix: Return (batch, stop - start, classes), True for each right answer at a place.
    """
    drawn = task.sample(task.lengths, 16, generator())
    rows, tokens = drawn.inputs.shape
    support = task.support(drawn.inputs, 0, tokens)
    if support is None:
        raise NotApplicable("its targets are the only right answers")
    shape = (rows, tokens, task.classes)
    fits = support.shape == shape and support.dtype == torch.bool
    require(fits, f"support is {tuple(support.shape)} of {support.dtype}, not {shape} of bool")
    asked = drawn.part >= 0
    held = support[asked].gather(1, drawn.targets[asked][:, None])
    require(bool(held.all()), "a target is not in the support")
    pieces = [task.support(drawn.inputs, place, place + 1) for place in range(tokens)]
    together = torch.cat([piece for piece in pieces if piece is not None], 1)
    require(torch.equal(together, support), "support by chunks is not that of whole rows")


@RULES.rule
def variants_fit_a_model_of_the_task(task: Task) -> None:
    """Every variant has the tokens, answers and training lengths of the task.

    Why: A trained model is tested on the variants too.
    Fix: Give a variant the same sizes as the task.
    """
    if not task.variants:
        raise NotApplicable("it has no variants")
    for name, spec in task.variants.items():
        variant: Task = tasks.build(spec)
        for field in ("vocabulary", "classes", "lengths"):
            one, two = getattr(variant, field), getattr(task, field)
            require(one == two, f"{field} of the variant {name} is {one}, that of the task {two}")


@RULES.rule
def stream_continues_one_generator(task: Task) -> None:
    """`stream` gives batch after batch of one generator.

    Why: It is how a task is used in one's own training loop.
    Fix: Leave `stream` as it is in `Task`.
    """
    stream, ours = task.stream(3, seed=7), generator(7)
    for _ in range(2):
        expected = task.sample(task.lengths, 3, ours)
        require(same(next(stream), expected), "`stream` gives other sequences than `sample`")
