"""What tasks say of their rows agrees with the answers they expect."""

import pytest
import torch

import outlast
from outlast.tasks.truth import Truth, TruthMemory

LINES = (
    "composite(modulus=5, keys=12, queries=3, length=6)",
    "composite(modulus=5, keys=12, queries=3, length=6, layout=chained)",
    "composite(modulus=5, keys=12, queries=3, length=6, layout=interleaved)",
    "composite(modulus=5, keys=4, queries=3, length=6, key_tokens=2)",
    "composite(modulus=5, keys=3, queries=3, length=6, key_tokens=2, repeat=latest)",
    "composite(modulus=5, keys=3, queries=3, length=6, layout=chained, repeat=latest)",
    "composite(group=S3, keys=12, queries=3, length=6)",
    "composite(group=S5, keys=3, queries=3, length=6, layout=chained, repeat=latest)",
    "recall(keys=12, values=5, queries=3, length=6)",
    "modsum(modulus=5, length=6)",
    "parity(length=6)",
    "flipflop(length=12, ignore=0.3)",
    "copy(signs=5, length=6)",
    "entangled_parity(keys=12, length=6)",
    "permutation(length=6)",
    "recall(keys=12, values=5, queries=3, length=6, fillers=2)",
    "dyck(length=6)",
    "hierarchical_flipflop(length=12, ignore=0.3)",
    "regular(language=parity, length=6)",
    "needle(keys=12, length=6)",
    "count(length=12)",
    "majority(length=6)",
    "reverse(signs=5, length=6)",
    "sort(signs=5, length=6)",
)


@pytest.mark.parametrize("line", LINES)
def test_truth_holds_the_answers(line: str) -> None:
    task = outlast.task(line)
    batch = next(iter(task.stream(batch=20, seed=3)))
    truth = task.truths(batch.inputs)
    for index, part in enumerate(task.parts):
        asked = batch.part == index
        row, place = asked.nonzero(as_tuple=True)
        answers = batch.targets[asked]
        if part == "recall":
            source = truth.source[asked]
            assert (source >= 0).all()
            assert (source <= place).all()
            held = batch.inputs[row, source]
            if "chained" in line:
                held = truth.state[row, source]
            elif "entangled" in line:
                held = held ^ truth.state[asked]
            assert torch.equal(held, answers)
        else:
            assert torch.equal(truth.state[asked], answers)
            assert (truth.source[asked] == -1).all()
    keyed = truth.key >= 0
    assert keyed.any() == ("keys" in line)


@pytest.mark.parametrize("line", LINES)
def test_truth_and_answers_of_any_tokens_are_no_error(line: str) -> None:
    task = outlast.task(line)
    tokens = torch.randint(task.vocabulary, (50, 12), generator=torch.Generator().manual_seed(0))
    assert all(table.shape == tokens.shape for table in task.truths(tokens))
    assert all(len(task.solve(row)) == len(row) for row in tokens.tolist())


def test_memory_tells_batches_apart_and_forgets_the_oldest() -> None:
    asked: list[list[int]] = []

    def truth(row: list[int]) -> Truth:
        asked.append(row)
        return Truth(list(row), list(row), list(row))

    memory = TruthMemory(batches=2)
    batches = [torch.tensor([[1, 2]]), torch.tensor([[1], [2]]), torch.tensor([[3, 4]])]
    for batch in [*batches, *batches[1:]]:
        assert torch.equal(memory.table(batch, truth).state, batch)
    assert asked == [[1, 2], [1], [2], [3, 4]]
    memory.table(batches[0], truth)
    assert asked[-1] == [1, 2]
