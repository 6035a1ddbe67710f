"""The seam all weights stand behind: from scores to what is done with the values.

A temperature goes into the queries (`sharpen`) and leaves torch's fused softmax in place. It
multiplies q k^T and leaves a bias of positions alone, as in the code of ASEntmax's authors; a
scheme that makes more of the queries (`cope`, `dape`) sees the sharper ones. Anything else is
`normalise`, over a block of queries and all keys up to them. What must be known of earlier queries
travels as the `carry` (batch, heads, keys seen), through blocks and in the cache.
"""

from __future__ import annotations

from torch import Tensor, nn

from outlast.specs import Spec


class Weights(nn.Module):
    """Base of all weights; as it stands, a softmax."""

    spec: Spec

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads

    def sharpen(self, q: Tensor, x: Tensor, positions: Tensor) -> Tensor:
        """Change the queries (batch, heads, tokens, head width) of x (batch, tokens, width)."""
        return q

    def spread(self, v: Tensor) -> Tensor:
        """Change the values (batch, heads, tokens, head width), before they are cached."""
        return v

    def normalise(self, scores: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Weights of scores (batch, heads, queries, keys), which are -inf for later keys."""
        return scores.softmax(-1), carry

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        """What the queries get of plain scores, from a kernel made for these; None: there is none.

        Plain are those that the scheme adds nothing to.
        """
        return None

    def gather(self, y: Tensor, x: Tensor) -> Tensor:
        """Change what came of the values, (batch, heads, tokens, head width)."""
        return y

    @property
    def sharpens(self) -> bool:
        """Whether it changes the queries."""
        return type(self).sharpen is not Weights.sharpen

    @property
    def is_softmax(self) -> bool:
        """Whether it is a softmax, of queries that may have been sharpened."""
        return type(self).normalise is Weights.normalise
