"""What a state can be a product in: numbers added modulo m, or orders of a few things.

Elements are numbered from 0, which is the one that changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import combinations, permutations
from typing import Literal

from torch import Tensor

from outlast.tasks.tracking import DeviceTable, prefixes

GroupName = Literal["S3", "S5", "A5"]
Row = tuple[int, ...]


class Group(ABC):
    """Elements and their product."""

    #: how many elements there are
    size: int

    @abstractmethod
    def running(self, elements: Tensor) -> Tensor:
        """The product of each element with all before it in its row, (batch, n)."""

    @abstractmethod
    def product(self, earlier: int, later: int) -> int:
        """The product of two elements, in plain Python."""

    def word(self, element: int) -> str:
        return str(element)


class Sums(Group):
    """Numbers, added modulo a number."""

    def __init__(self, modulus: int) -> None:
        self.size = modulus

    def running(self, elements: Tensor) -> Tensor:
        return elements.cumsum(1) % self.size

    def product(self, earlier: int, later: int) -> int:
        return (earlier + later) % self.size


class Orders(Group):
    """Orders of three things, of five, or those of five with an even parity.

    An element is the row that it makes of 1, 2, 3, ... and elements are in the order of these rows
    as numbers. Each one moves what the ones before it have made: 231 puts what stood second first.
    """

    def __init__(self, name: GroupName) -> None:
        every = permutations(range(int(name[1])))
        self.rows = [row for row in every if name[0] == "S" or _is_even(row)]
        self.size = len(self.rows)
        self._number = {row: index for index, row in enumerate(self.rows)}
        every_element = range(self.size)
        self.products = DeviceTable(
            [[self.product(one, two) for two in every_element] for one in every_element]
        )

    def running(self, elements: Tensor) -> Tensor:
        products = self.products.on(elements.device)
        return prefixes(elements, lambda earlier, later: products[earlier, later])

    def product(self, earlier: int, later: int) -> int:
        row = self.rows[earlier]
        return self._number[tuple(row[place] for place in self.rows[later])]

    def word(self, element: int) -> str:
        return "".join(str(place + 1) for place in self.rows[element])


def _is_even(row: Row) -> bool:
    return sum(one > two for one, two in combinations(row, 2)) % 2 == 0
