"""The interface of every scheme: where position may enter attention.

Most schemes need one of three places, and go through torch's fused attention at any length: `embed`
(the input of q, k and v), `rotate` (queries and keys) or `bias` (a table added to the scores that
depends on positions alone). A scheme whose bias depends on the tokens gives `scores` instead. One
that does not want a softmax gives the weights themselves, `weigh`. Both go through the blocked path
of `blocks.py`. What a scheme needs to know of each token beyond q and k is its `token_features`,
which are cached beside keys and values.

Shapes: x (batch, tokens, width); q (batch, heads, queries, head width); k the same with keys;
token_features (batch, heads, keys, features); the last query is the last key. `positions`
(queries,) are those of the queries and `keys` (keys,) those of the keys. Both count from the start
of the sequence, cached tokens included. Drawn positions (`random_positions`) increase from token to
token too, but not by 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

from torch import Tensor, nn

from outlast.specs import Spec

#: applied to logits before weights are made of them
Change = Callable[[Tensor], Tensor]
#: whose definition is meant, where a paper and Hugging Face's transformers differ
Convention = Literal["paper", "transformers"]


class Scheme(nn.Module):
    """Base of every scheme. Without overrides it is attention without positions.

    `ceiling` is the most tokens it can take; None means no limit. Attention never asks for a
    position at or past the ceiling.
    """

    spec: Spec
    ceiling: int | None = None
    #: the most tokens that may be given in chunks; past it all tokens must be given at once
    chunks_to: int | None = None
    #: the most numbers held for each score and head; it sets the size of blocks
    scores_memory: ClassVar[int] = 1
    #: whether the positions of tokens matter; if not, drawn positions change nothing
    uses_positions: bool = True
    #: whether its bias may be -inf, so that a key is not seen at all
    masks: ClassVar[bool] = False
    #: whether scores depend on the queries; if not, weights cannot scale them
    uses_queries: ClassVar[bool] = True

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Change the input of q, k and v, (batch, tokens, width)."""
        return x

    def rotate(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Change queries and keys of the same tokens, before keys are cached."""
        return q, k

    def unpacked(self, packed: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Queries, keys and values of a projection, changed as by `rotate`, in one pass.

        packed (batch, tokens, 3, heads, head width). None: there is no kernel for it.
        """
        return None

    def values(self, x: Tensor, v: Tensor) -> Tensor:
        """Change the values (batch, heads, tokens, head width), before they are cached."""
        return v

    def token_features(self, x: Tensor) -> Tensor | None:
        """What is remembered of each token, (batch, heads, tokens, features)."""
        return None

    def bias(self, positions: Tensor, keys: Tensor) -> Tensor | None:
        """The bias added to the scores, (1, heads, queries, keys)."""
        return None

    def scores(
        self, q: Tensor, k: Tensor, token_features: Tensor | None, positions: Tensor, keys: Tensor
    ) -> Tensor:
        """The scores (batch, heads, queries, keys); those of later keys do not matter."""
        scores = scaled_products(q, k)
        bias = self.bias(positions, keys)
        return scores if bias is None else scores + bias

    def weigh(
        self,
        q: Tensor,
        k: Tensor,
        token_features: Tensor | None,
        positions: Tensor,
        allowed: Tensor,
        keys: Tensor,
        change: Change,
    ) -> Tensor | None:
        """The weights (batch, heads, queries, keys), for a scheme that makes its own.

        They are 0 where not `allowed` (queries, keys). `change` must be applied to their logits.
        """
        return None

    def fused(
        self, q: Tensor, k: Tensor, v: Tensor, token_features: Tensor | None, drawn: bool
    ) -> Tensor | None:
        """The output (batch, heads, queries, head width) of a kernel for this scheme.

        None: there is no kernel. Called if the scheme makes its own weights, or they are a softmax.
        `drawn`: positions are drawn, not counted.
        """
        return None

    @property
    def has_plain_scores(self) -> bool:
        """Whether position enters by `embed`, `rotate` and `bias` alone."""
        return type(self).scores is Scheme.scores and not self.weighs

    @property
    def weighs(self) -> bool:
        """Whether it makes its own weights."""
        return type(self).weigh is not Scheme.weigh


def scaled_products(q: Tensor, k: Tensor) -> Tensor:
    """q k^T / sqrt(d), (batch, heads, queries, keys)."""
    return q @ k.mT / q.shape[-1] ** 0.5


def distances(positions: Tensor, keys: Tensor) -> Tensor:
    """How far each key lies behind each query, (queries, keys); negative for later keys."""
    return positions[:, None] - keys
