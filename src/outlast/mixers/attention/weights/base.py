"""The interface of all weights: from scores to weights of the values.

A temperature goes into the queries (`sharpen`) and keeps torch's fused softmax. It multiplies q k^T
and does not change a bias of positions, as in the code of ASEntmax's authors. A scheme that makes
more use of the queries (`cope`, `dape`) sees the sharper ones. Anything else is `normalise`, over a
block of queries and all keys up to them. What must be known of earlier queries is the `carry`
(batch, heads, keys so far). It passes from block to block and through the cache.
"""

from __future__ import annotations

from torch import Tensor, nn

from outlast.specs import Spec


class Weights(nn.Module):
    """Base of all weights. Without overrides it is a softmax."""

    spec: Spec
    #: whether a tiny change of a score may change the weights by much, so that rounding shows
    jumps = False

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads

    def sharpen(self, q: Tensor, x: Tensor, positions: Tensor) -> Tensor:
        """Change the queries (batch, heads, tokens, head width) of x (batch, tokens, width).

        `positions` (tokens,) say how many keys each query sees before itself.
        """
        return q

    def spread(self, v: Tensor) -> Tensor:
        """Change the values (batch, heads, tokens, head width), before they are cached."""
        return v

    def normalise(self, scores: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Weights of scores (batch, heads, queries, keys), which are -inf for later keys."""
        return scores.softmax(-1), carry

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        """The output (batch, heads, queries, head width) of a kernel for these weights.

        Called if the scheme adds nothing to the scores. None: there is no kernel.
        """
        return None

    def gather(self, y: Tensor, x: Tensor) -> Tensor:
        """Change the output of attention, (batch, heads, tokens, head width)."""
        return y

    @property
    def sharpens(self) -> bool:
        """Whether it changes the queries."""
        return type(self).sharpen is not Weights.sharpen

    @property
    def is_softmax(self) -> bool:
        """Whether it is a softmax (the queries may be sharpened)."""
        return type(self).normalise is Weights.normalise
