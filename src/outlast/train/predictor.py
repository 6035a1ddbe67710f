"""S seeds as a test wants them: a whole sequence at once, or chunk after chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from outlast.mixers.randomness import fixed_positions


class CarriedState:
    """The state of all seeds between two chunks of a sequence of `total` tokens.

    Below vmap a state is that of one seed, and only tensors come out of vmap. So the tensors are
    kept by themselves, each (S, ...). What else a state has is the same for all seeds.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.tensors: list[Tensor] = []
        self._form: tuple[list[Any], TreeSpec] | None = None

    def of_one(self, tensors: Sequence[Tensor]) -> Any:
        """The state of one seed, with these tensors; None before the first chunk."""
        if self._form is None:
            return None
        rest = iter(tensors)
        leaves, form = self._form
        return tree_unflatten([next(rest) if item is Tensor else item for item in leaves], form)

    def split(self, state: Any) -> list[Tensor]:
        """The tensors of one seed's state; its form is remembered."""
        leaves, form = tree_flatten(state)
        self._form = [Tensor if isinstance(item, Tensor) else item for item in leaves], form
        return [item for item in leaves if isinstance(item, Tensor)]


class Predictor:
    """Tokens (batch, tokens) to logits (S, batch, tokens, outputs).

    Args:
        run: `StackedModel.run`, with its weights and gates.
        spans: The range from which each seed's positions are drawn, 0 if they are counted.
        chunks_to: As `Model.chunks_to`.
    """

    def __init__(
        self, run: Callable[..., Tensor], spans: Sequence[int], chunks_to: int | None
    ) -> None:
        self.run, self.spans, self.chunks_to = run, spans, chunks_to

    def __call__(self, tokens: Tensor) -> Tensor:
        return self.run(tokens[None], positions=self._positions(tokens))

    @torch.no_grad()
    def in_chunks(self, tokens: Tensor, size: int) -> Iterator[Tensor]:
        """The logits of `size` tokens after the other, each (S, batch, size or fewer, outputs)."""
        positions, carried = self._positions(tokens), CarriedState(tokens.shape[1])
        for start in range(0, carried.total, size):
            part = slice(start, start + size)
            places = None if positions is None else positions[:, part]
            yield self.run(tokens[None, :, part], positions=places, carried=carried)

    def _positions(self, tokens: Tensor) -> Tensor | None:
        """Where the tokens stand, (S or 1, tokens), if they are not counted."""
        spans = sorted(set(self.spans))
        if spans == [0]:
            return None
        drawn = {n: fixed_positions(tokens.shape[1], n, tokens.device) for n in spans}
        each = self.spans if len(spans) > 1 else spans
        return torch.stack([drawn[span] for span in each])
