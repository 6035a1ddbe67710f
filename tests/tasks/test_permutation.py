"""The groups are groups, and products are in the order in which the elements stand."""

import pytest
import torch

import outlast
from outlast.tasks.permutation import Permutation
from outlast.tasks.tracking import follow, prefixes


@pytest.mark.parametrize(("group", "elements"), [("S3", 6), ("S5", 120), ("A5", 60)])
def test_products_are_those_of_a_group(group: str, elements: int) -> None:
    task = Permutation(group)  # type: ignore[arg-type]
    products = task.group.products.on(torch.device("cpu"))
    assert products.shape == (elements, elements)
    every = torch.arange(elements)
    assert torch.equal(products[0], every)
    assert torch.equal(products[:, 0], every)
    for lines in (products, products.T):  # each element stands once in each line
        assert torch.equal(lines.sort(1).values, every.expand_as(lines))
    one, two, three = torch.randint(elements, (3, 500), generator=torch.Generator().manual_seed(0))
    assert torch.equal(products[products[one, two], three], products[one, products[two, three]])
    assert not torch.equal(products, products.T)


@pytest.mark.parametrize("group", ["S3", "S5", "A5"])
@pytest.mark.parametrize("layout", ["separate", "chained", "interleaved"])
def test_composite_of_a_group_asks_for_the_product_of_permutation(group: str, layout: str) -> None:
    alone = Permutation(group)  # type: ignore[arg-type]
    task = outlast.task(f"composite(group={group}, layout={layout}, keys=40)")
    assert task.classes == alone.items
    assert all(task.word(element) == alone.word(element) for element in range(alone.items))
    batch = task.sample((2, 12), 40, torch.Generator().manual_seed(0))
    parts = [batch.part == task.parts.index(part) for part in ("running", "state")]
    for row, targets, added, close in zip(batch.inputs, batch.targets, *parts, strict=True):
        product = alone.solve([*row[added].tolist(), alone.equals])
        assert [*targets[added].tolist(), *targets[close].tolist()] == product


def test_a_word_is_the_row_that_an_element_makes() -> None:
    task = Permutation("S3")
    ids = {task.word(token): token for token in range(task.vocabulary)}
    made = task.solve([ids["312"], ids["="]])
    assert made == [ids["312"], ids["312"]]


@pytest.mark.parametrize("length", [1, 2, 3, 8, 13])
def test_prefixes_are_the_steps_one_after_another(length: int) -> None:
    maps = torch.randint(4, (3, length, 4), generator=torch.Generator().manual_seed(length))
    at_once = prefixes(maps, follow)
    for row in range(3):
        state = list(range(4))
        for place in range(length):
            state = [int(maps[row, place, s]) for s in state]
            assert at_once[row, place].tolist() == state
