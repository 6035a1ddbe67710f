"""The seam every scheme stands behind: where position may enter attention.

Most schemes need one of three places, and go through torch's fused attention whatever the
length: `embed` (the input of q, k and v), `rotate` (queries and keys) or `bias` (a table added to
the scores that depends on positions alone). One whose bias depends on the tokens gives `scores`
instead, and one that has no use for a softmax gives the weights themselves, `weigh`; both go
through the blocked path of `blocks.py`. What it needs to know of each token beyond q and k it
notes down as `marks`, which are kept in the cache beside keys and values.

Shapes: x (batch, tokens, width); q (batch, heads, queries, head width); k the same with keys;
marks (batch, heads, keys, any number); the last query is the last key. `positions` (queries,) is
where the queries stand and `keys` (keys,) where the keys do: both count from the start of the
sequence, cached tokens included, unless the positions were drawn (`random_positions`): then they
still increase from token to token, but not by 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from outlast.specs import Spec

#: what is done to logits before weights are made of them
Change = Callable[[Tensor], Tensor]


def unchanged(logits: Tensor) -> Tensor:
    """Nothing is."""
    return logits


class Scheme(nn.Module):
    """Base of every scheme; as it stands, it leaves attention without any position.

    `ceiling` is the most tokens it can take; None means no limit. Attention sees to it that no
    position at or past the ceiling is ever asked for.
    """

    spec: Spec
    ceiling: int | None = None
    #: how many numbers are held for each score and head at the worst, for the size of blocks
    heavy: ClassVar[int] = 1
    #: whether it asks where a token stands; else positions that are drawn change nothing
    placed: bool = True
    #: whether scores depend on the queries; else nothing that changes queries has a meaning
    queried: ClassVar[bool] = True

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Change the input of q, k and v."""
        return x

    def rotate(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Change queries and keys of the same tokens, before keys are cached."""
        return q, k

    def unpacked(self, packed: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Queries, keys and values of a projection, changed as `rotate` changes them, in one pass.

        packed (batch, tokens, 3, heads, head width). None: there is no kernel for it.
        """
        return None

    def values(self, x: Tensor, v: Tensor) -> Tensor:
        """Change the values, before they are cached."""
        return v

    def marks(self, x: Tensor) -> Tensor | None:
        """What is to be remembered of each token, (batch, heads, tokens, any number)."""
        return None

    def bias(self, positions: Tensor, keys: Tensor | int) -> Tensor | None:
        """What is added to the scores of these queries over these keys (or the first so many).

        (1, heads, queries, keys).
        """
        return None

    def scores(
        self,
        q: Tensor,
        k: Tensor,
        marks: Tensor | None,
        positions: Tensor,
        keys: Tensor | None = None,
    ) -> Tensor:
        """The scores (batch, heads, queries, keys); those of later keys do not matter."""
        scores = products(q, k)
        bias = self.bias(positions, k.shape[-2] if keys is None else keys)
        return scores if bias is None else scores + bias

    def weigh(
        self,
        q: Tensor,
        k: Tensor,
        marks: Tensor | None,
        positions: Tensor,
        allowed: Tensor,
        keys: Tensor | None = None,
        change: Change = unchanged,
    ) -> Tensor | None:
        """The weights themselves, for a scheme that makes its own; 0 where not `allowed`.

        `change` is to be applied to the logits they are made of.
        """
        return None

    def fused(
        self, q: Tensor, k: Tensor, v: Tensor, marks: Tensor | None, drawn: bool
    ) -> Tensor | None:
        """What the queries get, from a kernel made for this scheme; None: there is none.

        Asked for where the scheme makes its own weights, or they are a softmax. `drawn`: tokens
        stand elsewhere than one after the other.
        """
        return None

    @property
    def pointwise(self) -> bool:
        """Whether position enters by `embed`, `rotate` and `bias` alone."""
        return type(self).scores is Scheme.scores and not self.weighs

    @property
    def weighs(self) -> bool:
        """Whether it makes weights of its own."""
        return type(self).weigh is not Scheme.weigh


def products(q: Tensor, k: Tensor) -> Tensor:
    """q k^T / sqrt(d)."""
    return q @ k.mT / q.shape[-1] ** 0.5


def distances(positions: Tensor, keys: Tensor | int) -> Tensor:
    """How far each key lies back from each query, (queries, keys); below 0 for later keys."""
    if isinstance(keys, int):
        keys = torch.arange(keys, device=positions.device)
    return positions[:, None] - keys
