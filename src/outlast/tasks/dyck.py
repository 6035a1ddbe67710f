"""Dyck: which bracket closes the innermost one that is open? A stack as the state.

Words of k kinds of brackets up to a depth: arXiv 2010.07515 (RNNs can generate bounded hierarchical
languages) and 2105.11115 (Self-attention networks can process bounded hierarchical languages).
What is asked is our choice: the one closing bracket that may come next.

The first bracket opens and stays open, so that there is always one to close: our choice, too. Every
other one opens or closes with equal probability, but never closes the first one, and never opens
more than `depth`. The kind of an opening bracket is drawn uniformly.

Length n is the number of brackets; tensors are (batch, n + 1). Token ids: closing brackets, opening
brackets, ``=``, padding. The closing bracket is due at ``=`` (part `state`) and, with aligned
supervision, at each bracket (part `running`, not counted in a test). A guess is right once in k
times. Examples::

    dyck
    tokens  ( [ ] ( [ =
    labels  ) ] ) ) ] ]

    dyck(supervision=outcome)
    tokens  ( [ ] =
    labels  . . . )
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.arguments import as_whole, check_whole
from outlast.registry import tasks
from outlast.tasks.base import Batch, Length, Supervision
from outlast.tasks.sampling import bernoulli, randint
from outlast.tasks.tracking import Tracking, follow, prefixes

OPENING, CLOSING = "([{<", ")]}>"
#: the deepest; a row is drawn by a table of all depths for each of its brackets
DEEPEST = 64


@tasks.register("dyck")
class Dyck(Tracking):
    """The bracket that closes the innermost open one, asked at the end or all along.

    Args:
        k: How many kinds of brackets there are.
        depth: How many brackets are open at most.
        supervision: `aligned` asks at each bracket; `outcome` at the end alone.
        length: The longest length trained on, in brackets.
    """

    paper = "2010.07515 RNNs can generate bounded hierarchical languages with optimal memory"
    samples_jointly = True

    def __init__(
        self, k: int = 2, depth: int = 8, supervision: Supervision = "aligned", length: int = 25
    ) -> None:
        check_whole("k", k, 2)
        check_whole("depth", depth, 2, DEEPEST)
        self.k, self.depth = k, depth
        self._set_up(2 * k, k, supervision, length)

    def word(self, token: int) -> str:
        token = as_whole("token", token, 0, self.vocabulary - 1)
        if token >= self.items:
            return self.symbols[token - self.items]
        signs, kind = (CLOSING, token) if token < self.k else (OPENING, token - self.k)
        return signs[kind] if self.k <= len(signs) else f"{signs[0]}{kind}"

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        lengths, longest = self.draw_lengths(length, batch, generator)
        depth = self._draw_depths(batch, longest, generator)
        kinds = randint(0, self.k, (batch, longest), generator)
        before = torch.nn.functional.pad(depth[:, :-1], (1, 0))
        opens = depth > before
        place = torch.arange(longest, device=depth.device).expand(batch, -1)
        # the innermost open bracket after each one, and the one that a closing bracket closes
        inner, closed = torch.zeros_like(place), torch.zeros_like(place)
        for level in range(1, self.depth + 1):
            last = place.where(opens & (depth == level), 0).cummax(1).values
            inner = last.where(depth == level, inner)
            closed = last.where(before == level, closed)
        brackets = torch.where(opens, self.k + kinds, kinds.gather(1, closed))
        return self._written(brackets, kinds.gather(1, inner), lengths)

    def _draw_depths(self, batch: int, count: int, generator: torch.Generator) -> Tensor:
        """How many brackets are open after each one, (batch, count): a walk from 1 to `depth`."""
        depths = torch.arange(self.depth, device=generator.device)  # less one
        up = bernoulli(0.5, (batch, count), generator)[..., None]
        up = (up | (depths == 0)) & (depths < self.depth - 1)
        steps = torch.where(up, depths + 1, depths - 1)
        steps[:, 0].fill_(0)  # the first bracket opens
        return 1 + prefixes(steps, follow)[..., 0]

    def states(self, items: Sequence[int]) -> list[int]:
        is_open, innermost = list[int](), [0]
        for item in items:
            if item >= self.k:
                is_open.append(item - self.k)
            elif is_open:
                is_open.pop()
            innermost.append(is_open[-1] if is_open else 0)
        return innermost
